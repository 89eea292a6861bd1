"""A loss of power at any step, and what is there after the next boot (C5, C13, C19)."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import apply, connect
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.power_loss import UNKNOWN, open_domain
from spark_jms.cli.__main__ import cli
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.errors import DataLossError, DomainError, RecordSetError
from spark_jms.log.destinations import domain as domain_module
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.log.upkeep import power_loss
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.power_loss import unreadable_log_files
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import open_store
from tests.harness.domains.power_loss import Disk, PowerLossStorage, PowerLost
from tests.harness.domains.servers import Away, applied, queue_on

SEEDS = int(os.environ.get("JMSQ_SEEDS", "20"))
MODULE = {
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 2, "errorDestination": "failed", "redeliveryLimit": 1},
        "failed": {"kind": "queue"},
        "prices": {"kind": "topic"},
        "safe": {"kind": "queue", "durability": "power"},
    }
}


@dataclass
class Course:
    """What programs do with the domain of one machine, seeded. `sent` is what `send` has returned for, `received` what was
    acknowledged; `maybe` was under way when the power was lost. `forced`: sent, and forced to the disk since."""

    root: str
    draw: random.Random
    disk: Disk
    sent: dict[str, set[str]] = field(default_factory=dict)
    received: set[str] = field(default_factory=set)
    forced: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    count: int = 0

    def run(self, actions: int) -> None:
        with ExitStack() as stack, suppress(PowerLost):
            context = connect(self.root, housekeeping=False)
            stack.callback(_closed, context)
            for _ in range(actions):
                self.act(context)

    def act(self, context: Context) -> None:
        kinds: list[Callable[[Context], None]] = [
            *[self.send] * 6,
            *[self.receive] * 4,
            self.transact,
            self.reject,
            self.compact,
            self.clean,
            self.os_writes,
        ]
        self.draw.choice(kinds)(context)

    def texts(self, count: int) -> list[str]:
        self.count += count
        return [f"t{self.count - i}" for i in range(count)]

    def send(self, context: Context) -> None:
        name, texts = self.draw.choice(["orders", "orders", "safe", "prices"]), self.texts(self.draw.randint(1, 3))
        self.maybe = set(texts)
        context.producer(name).send_many({"text": text} for text in texts)
        self.sent.setdefault(name, set()).update(texts)
        if name == "safe":
            self.forced |= set(texts)
        self.maybe = set()

    def receive(self, context: Context) -> None:
        name = self.draw.choice(["orders", "safe", "failed"])
        with context.consumer(name, acknowledge="individual") as consumer:
            for _ in range(self.draw.randint(1, 3)):
                message = consumer.receive(timeout=0)
                if message is None:
                    break
                self.maybe = {str(message.text)}
                message.acknowledge()
                self.received.add(str(message.text))
                self.maybe = set()

    def transact(self, context: Context) -> None:
        with context.transacted_session() as session, session.consumer("orders") as consumer:
            message = consumer.receive(timeout=0)
            texts, target = self.texts(2), self.draw.choice(["safe", "failed"])
            for text in texts:
                session.producer(target).send(text=text)
            taken = {str(message.text)} if message else set()
            self.maybe = {*taken, *texts}
            session.commit()
            self.received |= taken
            self.sent.setdefault(target, set()).update(texts)
            if taken:  # else it is a send like any other
                self.forced |= set(texts)
            self.maybe = set()

    def reject(self, context: Context) -> None:
        with context.consumer("orders", acknowledge="individual") as consumer:
            if (message := consumer.receive(timeout=0)) is not None:
                message.reject()

    def compact(self, context: Context) -> None:
        for name in ("orders", "safe"):
            log = Domain(self.root).log(name)
            compact(log)
            checkpoint(log, every=self.draw.choice([1, 10]))

    def clean(self, context: Context) -> None:
        for name in ("orders", "safe"):
            log = Domain(self.root).log(name)
            CleanUp(log).run(now=10**15)

    def os_writes(self, context: Context) -> None:
        self.disk.force_all()
        self.forced |= set().union(*self.sent.values()) if self.sent else set()


def _closed(context: Context) -> None:
    with suppress(PowerLost, Exception):
        context.close()


@pytest.fixture
def disks(monkeypatch: pytest.MonkeyPatch) -> dict[str, Disk]:
    """root -> its disk: every storage below it is a PowerLossStorage."""
    known: dict[str, Disk] = {}

    def opened(root: str) -> PowerLossStorage:
        disk = known.setdefault(str(root), Disk(Path(root)))
        return PowerLossStorage(Path(root), disk)

    monkeypatch.setattr(domain_module, "open_storage", opened)
    return known


@pytest.fixture
def boot(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A new boot of this host."""
    number = 0

    def again() -> None:
        nonlocal number
        number += 1
        monkeypatch.setattr(power_loss, "this_boot", lambda: f"boot-{number}")

    again()
    return again


def everything(root: str, name: str) -> list[str]:
    subscription = "s" if name == "prices" else None
    with (
        connect(root, housekeeping=False) as context,
        context.consumer(name, subscription=subscription, acknowledge="auto") as consumer,
    ):
        return [str(m.text) for m in iter(lambda: consumer.receive(timeout=0), None)]


def begun(root: str, disks: dict[str, Disk]) -> Disk:
    """With a durable subscription, which is on the disk once it was made."""
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        context.consumer("prices", subscription="s").close()
    return disks[root]


def send_to_all(root: str) -> None:
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "safe", "prices", "failed"):
            context.producer(name).send_many({"text": f"new {name} {n}"} for n in range(4))


def check(course: Course, root: str) -> None:
    """What was sent afterwards is received. What was forced is there once, unless it was acknowledged before."""
    arrived = {name: everything(root, name) for name in ("orders", "safe", "failed", "prices")}
    for name, texts in arrived.items():
        new = [text for text in texts if text.startswith("new")]
        assert sorted(new) == [f"new {name} {n}" for n in range(4)]
    found = [text for texts in arrived.values() for text in texts]
    assert len(found) == len(set(found))
    assert course.forced - course.received - course.maybe <= set(found)
    assert not (course.received - course.maybe) & set(found)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_is_lost_at_any_step(tmp_path: Path, disks: dict[str, Disk], boot: Callable[[], None], seed: int) -> None:
    """C5, C13: everything opens without a manual step; what was on the disk is there, once, unless it was acknowledged; what is sent
    afterwards is received."""
    draw = random.Random(seed)
    root, after = str(tmp_path / "root"), str(tmp_path / "after")
    disk = begun(root, disks)
    disk.left = draw.randint(0, 250)
    course = Course(root, draw, disk)
    course.run(40)
    boot()
    disk.after_power_loss(Path(after), draw)

    send_to_all(after)
    check(course, after)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_power_is_lost_again_during_the_repair(
    tmp_path: Path, disks: dict[str, Disk], boot: Callable[[], None], seed: int
) -> None:
    """C5: at any step of it; the next boot repairs what is left, and the same is there."""
    draw = random.Random(seed)
    roots = [str(tmp_path / name) for name in ("root", "second", "third")]
    begun(roots[0], disks).left = draw.randint(30, 200)
    course = Course(roots[0], draw, disks[roots[0]])
    course.run(40)
    boot()
    disks[roots[0]].after_power_loss(Path(roots[1]), draw)
    disks[roots[1]] = second = Disk(Path(roots[1]), draw.randint(0, 30))
    second.adopt()
    with suppress(PowerLost):
        open_domain(roots[1])
    boot()
    second.after_power_loss(Path(roots[2]), draw)
    send_to_all(roots[2])
    check(course, roots[2])


# -- what the first process after a boot does -----------------------------------------------------------------------------
def consume(root: str, *texts: str) -> int:
    """Send and finish them; returns the last version of the log before."""
    version = open_domain(root).log("orders").refresh().version
    with connect(root, housekeeping=False) as context, context.consumer("orders", acknowledge="individual") as consumer:
        context.producer("orders").send_many({"text": text} for text in texts)
        for _ in texts:
            message = consumer.receive(timeout=5)
            assert message is not None
            message.acknowledge()
    return version


def lose_commits_behind(root: str, version: int) -> None:
    for file in Path(root, "orders", "_delta_log").glob("*.json"):
        if int(file.stem) > version:
            file.unlink()


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "root")
    apply(where, {"destinations": {"orders": {"kind": "queue"}}})
    return where


def test_store_that_is_ahead_is_refused_without_a_boot(root: str) -> None:
    """C5, C19: tables that an older copy has replaced are no loss of power."""
    lose_commits_behind(root, consume(root, "a", "b"))
    with (
        connect(root, housekeeping=False) as context,
        context.consumer("orders") as consumer,
        pytest.raises(RecordSetError, match="the store knows message 2"),
    ):
        consumer.receive(timeout=0)


def test_lost_numbers_are_passed_with_a_warning(
    root: str, boot: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    """C5: they are not given again, count for nothing, and stop nobody."""
    open_domain(root)
    lose_commits_behind(root, consume(root, "a", "b"))
    boot()
    domain = open_domain(root)
    assert domain.log("orders").refresh().lost == {0: Ranges.of((1, 2))}
    assert "messages (sequence 1-2)" in caplog.text
    with connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
        context.producer("orders").send(text="c")
        message = consumer.receive(timeout=5)
        assert message is not None
        assert (message.text, message.sequence) == ("c", 3)
    assert not Path(root, "_jmsq", "lost").exists()


def test_data_file_that_is_not_whole_leaves_the_log(root: str, boot: Callable[[], None]) -> None:
    """C5: its messages are lost, the others are there; what was damaged is set aside."""
    with connect(root, housekeeping=False) as context:
        for text in ("a", "b", "c"):
            context.producer("orders").send(text=text)
    files = sorted(open_domain(root).log("orders").refresh().files.values(), key=lambda file: file.first)
    Path(root, "orders", files[0].path).write_bytes(bytes(files[0].bytes))
    Path(root, "orders", files[2].path).unlink()
    boot()
    assert open_domain(root).log("orders").refresh().lost == {0: Ranges.of((1, 1), (3, 3))}
    [aside] = Path(root, "_jmsq", "lost").rglob("*.parquet")
    assert aside.name == files[0].path
    assert everything(root, "orders") == ["b"]
    rows = list(views.subscriptions(open_domain(root), open_store(open_domain(root).store_uri), "orders"))
    assert [row.backlog for row in rows] == [0]


def test_commits_behind_an_unreadable_one_are_set_aside(root: str, boot: Callable[[], None]) -> None:
    """C5: also one that ends at the end of a line; commits of other programs and of early releases name no version."""
    with connect(root, housekeeping=False) as context:
        for text in ("a", "b", "c", "d"):
            context.producer("orders").send(text=text)
    log = Path(root, "orders", "_delta_log")
    commits = sorted(log.glob("*.json"))
    assert unreadable_log_files(LocalStorage(Path(root, "orders"))) == []
    whole = commits[3].read_bytes()
    commits[3].write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    assert unreadable_log_files(LocalStorage(Path(root, "orders"))) == [f"_delta_log/{c.name}" for c in commits[:2:-1]]
    boot()
    assert everything(root, "orders") == ["a", "b"]
    assert sorted(file.name for file in Path(root, "_jmsq", "lost").rglob("*.json")) == [c.name for c in commits[3:]]


def test_members_of_a_silent_server_get_higher_numbers(tmp_path: Path, boot: Callable[[], None]) -> None:
    """C5, M10: its store cannot tell what it knows, so nothing that it may know is given again."""
    where = applied(tmp_path, queue_on("a", "b"))
    with connect(where, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n)} for n in range(4))
    boot()
    with Away(where, "b"):
        open_domain(where)
    snapshot = open_domain(where).log("orders").refresh()
    assert [snapshot.last_sequence(member) for member in (0, 1)] == [UNKNOWN + 2, UNKNOWN + 2]
    with connect(where, housekeeping=False) as context, context.consumer("orders") as consumer:
        context.producer("orders").send_many({"text": str(n)} for n in range(4, 8))
        assert sorted(str(consumer.receive(timeout=5).text) for _ in range(8)) == [str(n) for n in range(8)]  # type: ignore[union-attr]


def test_replayed_batch_of_lost_messages_is_named(root: str, boot: Callable[[], None]) -> None:
    """C5, C9: the checkpoint names them."""
    open_domain(root)
    version = open_domain(root).log("orders").refresh().version
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="a")
    source = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    start = source.initialOffset()
    end = source.latestOffset(first := source.latestOffset(start, ReadMaxRows(10)), ReadMaxRows(10))
    source.stop()
    lose_commits_behind(root, version)
    boot()
    again = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    [part] = again.partitions(first, end)
    with pytest.raises(DataLossError, match="a loss of power has taken them"):
        list(again.read(part))
    again.stop()


def test_second_process_waits_for_the_repair(
    root: str, boot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5: and says so when that does not end."""
    open_domain(root)
    boot()
    monkeypatch.setattr(power_loss, "_WAIT_S", 0.1)
    noted = power_loss.Boots(LocalStorage(Path(root)))
    with noted.alone(), pytest.raises(DomainError, match="another process has been repairing the domain"):
        open_domain(root)
    assert noted.earlier() is not None
    open_domain(root)
    assert noted.earlier() is None


def test_who_may_only_read_leaves_the_repair_to_others(
    root: str, boot: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C5, C14."""
    open_domain(root)
    boot()

    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(power_loss.os, "open", refused)
    assert open_domain(root).destinations() == ["orders"]


def test_recover_command_repairs_what_no_process_has_noticed(root: str) -> None:
    """C5, C14: of a host that has another name since."""
    lose_commits_behind(root, consume(root, "a", "b"))
    result = CliRunner().invoke(cli, ["--root", root, "recover"])
    assert result.exit_code == 0, result.output
    assert "is whole" in result.output
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="c")
    assert everything(root, "orders") == ["c"]
