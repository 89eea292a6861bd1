"""Dropping and renaming destinations (C14, C18)."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms.admin import destinations as drop_module
from spark_jms.admin import destinations as rename_module
from spark_jms.admin.destinations import drop_destination, plan_drop, rename_destination
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep import views
from spark_jms.cli.__main__ import cli
from spark_jms.client import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.stored_form import DOMAIN_RECORD
from spark_jms.errors import (
    DestinationDroppedError,
    DestinationInUseError,
    DestinationReplacedError,
    InvalidDestinationError,
    JmsqError,
    MemberUnavailableError,
    ModuleFileError,
)
from spark_jms.log.destinations.declarations import DeclarationChange, apply_destinations
from spark_jms.log.destinations.domain import ACKNOWLEDGEMENTS, REGISTER, Domain, Register
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import LocalStorage, NamedFiles
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import Store
from spark_jms.testing import memory_domain

LIMIT = ReadMaxRows(1000)


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", prices="topic") as where:
        yield where


@pytest.fixture
def domain(root: str) -> Domain:
    return Domain(root)


@pytest.fixture
def store(domain: Domain) -> Iterator[Store]:
    with views.opened_store(domain) as opened:
        yield opened


def apply(root: str, *names: str) -> list[DeclarationChange]:
    return apply_destinations(Domain(root), [Destination(name, "queue") for name in names], lambda *_: True)


def send(root: str, *texts: str, to: str = "orders") -> None:
    with connect(root, housekeeping=False) as context:
        context.producer(to).send_many({"text": text} for text in texts)


def receive(root: str, limit: int = 100, *, source: str = "orders") -> list[str | None]:
    """Received and acknowledged."""
    out: list[str | None] = []
    with connect(root, housekeeping=False) as context, context.consumer(source) as consumer:
        while len(out) < limit and (message := consumer.receive(timeout=0)) is not None:
            out.append(message.text)
            message.acknowledge()
    return out


def left(root: str, store: Store, name: str = "orders") -> list[str]:
    """Everything that is left of a dropped destination: files, and records with content."""
    files = [str(p.relative_to(root)) for p in Path(root).rglob("*") if name in p.name and "store" not in p.parts]
    return files + _records(store)


def _records(store: Store) -> list[str]:
    """Those with content, but for the one that names the domain."""
    return [record for record in store.names() if store.peek(record) and record != DOMAIN_RECORD]


# -- dropping -------------------------------------------------------------------------------------------------------------
def test_drop_deletes_everything(root: str, domain: Domain, store: Store) -> None:
    """C18: tables, register entry and records; the name is free, and the next destination of it starts empty."""
    send(root, "a", "b")
    assert receive(root) == ["a", "b"]
    assert left(root, store) != []
    plan = plan_drop(domain, store, "orders")
    assert (plan.stored_messages, plan.unfinished, plan.consumers, plan.begun) == (2, 0, (), False)
    assert drop_destination(domain, store, "orders") == plan
    assert left(root, store) == []
    assert domain.destinations() == ["prices"]
    with pytest.raises(InvalidDestinationError, match="there are: prices"):
        drop_destination(domain, store, "orders")
    assert apply(root, "orders")[0].what == "created"
    send(root, "c")
    assert receive(root) == ["c"]
    assert domain.log("orders").refresh().last_sequence(0) == 1  # the same process, the same path


def test_drop_is_refused_while_messages_are_unfinished(root: str, domain: Domain, store: Store) -> None:
    """C18: nothing changes; force drops them."""
    send(root, "a", "b", "c")
    assert receive(root, 1) == ["a"]
    with pytest.raises(DestinationInUseError, match=r"has 2 unfinished message.*jmsq purge orders.*--force"):
        drop_destination(domain, store, "orders")
    assert receive(root, 1) == ["b"]
    assert drop_destination(domain, store, "orders", force=True).unfinished == 1
    assert left(root, store) == []


def test_send_that_comes_first_keeps_the_destination(
    root: str, domain: Domain, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: a message arrives after the drop has counted none, and before it commits: the drop counts again."""
    unfinished = drop_module._unfinished
    counts: list[int] = []

    def counted(*arguments: Any) -> int:
        counts.append(unfinished(*arguments))
        if len(counts) == 1:
            send(root, "a")
        return counts[-1]

    monkeypatch.setattr(drop_module, "_unfinished", counted)
    monkeypatch.setattr(drop_module, "plan_drop", lambda *_, **__: None)
    with pytest.raises(DestinationInUseError, match="1 unfinished"):
        drop_destination(domain, store, "orders")
    assert counts == [0, 1]
    assert receive(root) == ["a"]


def test_drop_is_refused_while_a_consumer_is_alive(root: str, domain: Domain, store: Store) -> None:
    """C18: its error names the consumer. Forced, the consumer and a sender get a named error."""
    with connect(root, housekeeping=False) as context:
        producer = context.producer("orders")
        consumer = context.consumer("orders")
        producer.send(text="a")
        assert consumer.receive(timeout=5) is not None
        with pytest.raises(DestinationInUseError, match="is used by .*orders"):
            drop_destination(domain, store, "orders")
        drop_destination(domain, store, "orders", force=True)
        with pytest.raises((DestinationDroppedError, InvalidDestinationError)):
            consumer.receive(timeout=5)
        with pytest.raises(InvalidDestinationError):
            producer.send(text="b")
    assert not Path(root, "orders").exists()


@pytest.mark.parametrize("again", [False, True])
def test_consumer_that_missed_the_drop_claims_nothing(root: str, domain: Domain, store: Store, again: bool) -> None:
    """C18: it held no record, so the drop did not wait for it, and the log was deleted before it read the last commit."""
    settings = ConsumerSettings(replayable=False)
    early = Subscriber(Domain(root), store, "orders", "-", "early", settings)  # it has not even seen the message
    send(root, "a")
    late = Subscriber(Domain(root), store, "orders", "-", "late", settings)
    drop_destination(domain, store, "orders", force=True)
    if again:
        apply(root, "orders")
    for consumer in (early, late):
        with pytest.raises(DestinationReplacedError if again else InvalidDestinationError):
            consumer.next_batch(Batch(consumer.consumer), Limits())
        consumer.close()
    assert not any(store.peek(name) for name in store.names(f"members/{late.table_id}/"))


@pytest.mark.parametrize("again", [False, True])
def test_query_that_runs_its_last_batch_again_is_told_of_the_drop(
    root: str, domain: Domain, store: Store, again: bool
) -> None:
    """C18, C5: the drop came after its start. Its progress is gone, but no older copy of the domain was restored."""
    send(root, "a")
    query = Subscriber(Domain(root), store, "orders", "-", "q", ConsumerSettings())
    batch = query.next_batch(Batch("q", table=query.table_id), Limits())
    assert batch is not None
    query.close()
    restarted = Subscriber(Domain(root), store, "orders", "-", "q", ConsumerSettings())
    drop_destination(domain, store, "orders", force=True)
    if again:
        apply(root, "orders")
    with pytest.raises(DestinationReplacedError if again else InvalidDestinationError):
        restarted.resume(batch)
    restarted.close()


def test_dropped_destination_refuses_senders_and_consumers_by_name(
    root: str, domain: Domain, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: from the first step on, while the files are still there."""
    with connect(root, housekeeping=False) as context:
        producer, consumer = context.producer("orders"), context.consumer("orders")
        producer.send(text="a")
        monkeypatch.setattr(Register, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drop_destination(domain, store, "orders", force=True)
        before = set(Path(root, "orders").iterdir())
        for use in (
            lambda: producer.send(text="b"),
            lambda: consumer.receive(timeout=5),
            lambda: context.producer("orders"),
            lambda: apply(root, "orders"),
        ):
            with pytest.raises(DestinationDroppedError, match="start `jmsq drop orders` again"):
                use()
        assert set(Path(root, "orders").iterdir()) == before


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> None:
        function(*arguments, **named)
        raise KeyboardInterrupt

    return run


DROP_STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the mark": lambda patch: patch.setattr(drop_module, "commit_prepared", interrupted),
    "after the mark": lambda patch: patch.setattr(Register, "replace", interrupted),
    "after the register": lambda patch: patch.setattr(drop_module, "_empty_records", interrupted),
    "among the records": lambda patch: patch.setattr(drop_module, "_empty", after(drop_module._empty)),
    "after the records": lambda patch: patch.setattr(LocalStorage, "delete_all", interrupted),
    "among the files": lambda patch: patch.setattr(shutil, "rmtree", delete_one_file),
    "after the first table": lambda patch: patch.setattr(LocalStorage, "delete_all", after(LocalStorage.delete_all)),
    "after the files": lambda patch: patch.setattr(Register, "remove", interrupted),
}


def delete_one_file(path: Path) -> None:
    if not Path(path).exists():
        raise FileNotFoundError(path)
    next(file for file in sorted(Path(path).rglob("*")) if file.is_file()).unlink()
    raise KeyboardInterrupt


@pytest.mark.parametrize("step", DROP_STEPS)
def test_interrupted_drop_is_finished_by_the_next(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """C18: killed between any two steps. Until then the name is refused, and afterwards nothing is left."""
    send(root, "a", "b", "c")
    assert receive(root, 2) == ["a", "b"]
    with monkeypatch.context() as patch:
        DROP_STEPS[step](patch)
        with pytest.raises(KeyboardInterrupt):
            drop_destination(Domain(root), store, "orders", force=True)
    begun = step != "before the mark"
    if begun:
        with pytest.raises(DestinationDroppedError, match="orders"):
            apply(root, "orders")
        with pytest.raises(DestinationDroppedError, match="orders"):
            send(root, "d")
    assert plan_drop(Domain(root), store, "orders").begun == begun
    assert drop_destination(Domain(root), store, "orders", force=not begun).begun == begun
    assert left(root, store) == []
    assert apply(root, "orders")[0].what == "created"
    send(root, "d")
    assert receive(root) == ["d"]


def test_drop_stopped_between_two_files_is_named_until_the_end(
    root: str, domain: Domain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18: whatever is deleted already, a process that opens the table learns that it was dropped, and cannot send."""
    for text in "abc":
        send(root, text)
    table = domain.log("orders").storage
    before = Domain(root).log("orders")
    before.refresh()
    real, said = LocalStorage.delete, []

    def delete(storage: LocalStorage, path: str) -> None:
        real(storage, path)
        if path.startswith("orders/"):
            said.append(path)
            with pytest.raises(DestinationDroppedError):
                DeltaLog(table, "orders").refresh()

    monkeypatch.setattr(LocalStorage, "delete", delete)
    with views.opened_store(domain) as store:
        drop_destination(domain, store, "orders", force=True)
    assert len(said) > 3
    assert not Path(root, "orders").exists()
    with pytest.raises(InvalidDestinationError):
        before.verify()


def test_two_drops_at_once(root: str, store: Store) -> None:
    """C18: each finishes, or finds nothing to drop."""
    send(root, "a")
    errors: list[Exception] = []

    def run() -> None:
        try:
            drop_destination(Domain(root), store, "orders", force=True)
        except InvalidDestinationError as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) < 4
    assert left(root, store) == []


def test_file_that_is_deleted_while_it_is_replaced_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: two drops at once: one enters the id of the table into the register when the other one has finished."""
    files, put = NamedFiles(LocalStorage(tmp_path), "register"), LocalStorage.put

    def then_deleted(storage: LocalStorage, path: str, data: bytes) -> None:
        put(storage, path, data)
        storage.delete(path)

    monkeypatch.setattr(LocalStorage, "put", then_deleted)
    files.put("orders", b"dropping")
    assert files.names() == []


def test_drop_finishes_a_destination_deleted_by_hand(root: str, domain: Domain, store: Store) -> None:
    """C18: its table is missing; with force, the register entry and the acknowledgements go."""
    send(root, "a")
    shutil.rmtree(f"{root}/orders")
    with pytest.raises(InvalidDestinationError, match="jmsq drop --force orders"):
        drop_destination(domain, store, "orders")
    assert drop_destination(domain, store, "orders", force=True).begun
    assert domain.destinations() == ["prices"]
    assert not Path(root, ACKNOWLEDGEMENTS, "orders").exists()


def test_record_that_is_not_handed_over_stops_the_drop(root: str, domain: Domain, store: Store) -> None:
    """C18: the error says who holds it and what to do; the next drop does the rest."""
    send(root, "a", "b")
    assert receive(root, 1) == ["a"]
    record = _records(store)[0]
    with (
        store.connect("a stuck consumer") as session,
        session.open(record),
        pytest.raises(MemberUnavailableError, match="a stuck consumer still holds .* run `jmsq drop orders` again"),
    ):
        drop_destination(domain, store, "orders", force=True, wait_s=0)
    assert drop_destination(domain, store, "orders").begun
    assert left(root, store) == []


def reader(root: str, name: str) -> JmsqStreamReader:
    return JmsqStreamReader(parse_options({"root": root, "destination": name}))


def texts(source: JmsqStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
    """Of a batch, as its tasks read them."""
    batches = [b for p in source.partitions(start, end) for b in source.read(p)]
    return [row["text"] for batch in batches for row in batch.to_pylist()]


# -- renaming -------------------------------------------------------------------------------------------------------------
def test_rename_keeps_messages_and_positions(root: str, domain: Domain, store: Store) -> None:
    """C18: no file moves; what is acknowledged stays acknowledged."""
    send(root, "a", "b", "c")
    assert receive(root, 1) == ["a"]
    table = domain.log("orders").refresh().table_id
    renamed = rename_destination(domain, store, "orders", "sales")
    assert renamed.path == "orders"
    assert domain.destinations() == ["prices", "sales"]
    assert receive(root, source="sales") == ["b", "c"]
    snapshot = domain.log("sales").refresh()
    assert (snapshot.table_id, snapshot.destination.name, snapshot.metadata["name"]) == (table, "sales", "sales")
    with pytest.raises(InvalidDestinationError, match="there are: prices, sales"):
        send(root, "d")
    send(root, "e", to="sales")
    assert receive(root, source="sales") == ["e"]
    with connect(root, housekeeping=False) as context:
        assert [message.destination for message in context.browser("sales")] == []
    drop_destination(domain, store, "sales")
    assert left(root, store) == []


def test_old_name_is_free_after_a_rename(root: str, domain: Domain, store: Store) -> None:
    """C18: a destination created under it gets a path of its own."""
    send(root, "a")
    rename_destination(domain, store, "orders", "sales")
    assert [(change.destination, change.what) for change in apply(root, "orders", "sales")[:2]] == [
        ("orders", "created"),
        ("sales", "unchanged"),
    ]
    send(root, "b")
    assert receive(root) == ["b"]
    assert receive(root, source="sales") == ["a"]
    drop_destination(domain, store, "orders")
    send(root, "c", to="sales")
    assert receive(root, source="sales") == ["c"]


def test_rename_is_refused(root: str, domain: Domain, store: Store) -> None:
    """C18: to a name that is taken or invalid, of an unknown destination, and while a consumer is alive."""
    for old, new, error in (
        ("orders", "prices", InvalidDestinationError),
        ("orders", "orders", InvalidDestinationError),
        ("orders", "no/name", ModuleFileError),
        ("other", "sales", InvalidDestinationError),
    ):
        with pytest.raises(error):
            rename_destination(domain, store, old, new)
    send(root, "a", "b")
    with connect(root, housekeeping=False) as context:
        consumer = context.consumer("orders")
        assert consumer.receive(timeout=5) is not None
        with pytest.raises(DestinationInUseError, match=r"used by .*orders.*not renamed"):
            rename_destination(domain, store, "orders", "sales")
        assert sorted(domain.destinations()) == ["orders", "prices"]
        rename_destination(domain, store, "orders", "sales", force=True)
        assert consumer.receive(timeout=5) is not None  # it is bound to the table
    assert receive(root, source="sales") == ["a", "b"]  # unacknowledged


def test_query_continues_under_the_new_name(root: str, domain: Domain, store: Store) -> None:
    """C18: with its checkpoint, and its claim of the last batch is acknowledged."""
    send(root, "a", "b")
    source = reader(root, "orders")
    start = source.initialOffset()
    source.latestOffset(start, LIMIT)
    assert texts(source, start, start) == []  # Spark logs it
    end = source.latestOffset(start, LIMIT)
    assert texts(source, start, end) == ["a", "b"]
    source.stop()
    rename_destination(domain, store, "orders", "sales")
    send(root, "c", to="sales")
    again = reader(root, "sales")
    again.initialOffset()
    assert texts(again, start, end) == ["a", "b"]  # Spark repeats the batch that it has not committed
    last = again.latestOffset(end, LIMIT)
    assert texts(again, end, last) == ["c"]
    again.latestOffset(last, LIMIT)
    again.stop()
    assert receive(root, source="sales") == []


RENAME_STEPS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the new entry": lambda patch: patch.setattr(Register, "add", interrupted),
    "after the new entry": lambda patch: patch.setattr(rename_module, "commit", interrupted),
    "after the commit": lambda patch: patch.setattr(Register, "remove", interrupted),
}


@pytest.mark.parametrize("step", RENAME_STEPS)
def test_interrupted_rename_is_finished_by_the_next(
    root: str, store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """C18: killed between any two steps; both names work meanwhile, and nobody else can take them."""
    send(root, "a", "b", "c")
    assert receive(root, 1) == ["a"]
    with monkeypatch.context() as patch:
        RENAME_STEPS[step](patch)
        with pytest.raises(KeyboardInterrupt):
            rename_destination(Domain(root), store, "orders", "sales")
    assert receive(root, 1, source="orders" if step == "before the new entry" else "sales") == ["b"]
    if step != "before the new entry":
        with pytest.raises(InvalidDestinationError):
            rename_destination(Domain(root), store, "prices", "sales")
    rename_destination(Domain(root), store, "orders", "sales")
    assert Domain(root).destinations() == ["prices", "sales"]
    assert Domain(root).log("sales").refresh().destination.name == "sales"
    assert receive(root, source="sales") == ["c"]


# -- the commands ---------------------------------------------------------------------------------------------------------
def jmsq(root: str, *arguments: str, code: int = 0, typed: str | None = None) -> Result:
    result = CliRunner().invoke(cli, [*arguments, "--root", root], input=typed)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def test_drop_command(root: str) -> None:
    """C14, C18: it says what would go, asks, refuses, and reports as text or JSON."""
    send(root, "a", "b")
    assert receive(root, 1) == ["a"]
    shown = jmsq(root, "drop", "orders", "--dry-run").stdout
    assert shown.startswith("would drop orders: 2 stored message(s) in ")
    assert shown.endswith(", 1 unfinished\n")
    plan = json.loads(jmsq(root, "drop", "orders", "--dry-run", "--json").stdout)
    assert (plan["unfinished"], plan["path"], plan["dry_run"]) == (1, "orders", True)
    refused = jmsq(root, "drop", "orders", "--yes", code=1)
    assert "has 1 unfinished message(s): nothing was dropped" in refused.stderr
    assert "nothing was done" in jmsq(root, "drop", "orders", "--force", code=1, typed="n\n").stderr
    assert Domain(root).destinations() == ["orders", "prices"]
    assert jmsq(root, "drop", "orders", "--force", typed="y\n").stdout.endswith(", 1 unfinished\n")
    assert json.loads(jmsq(root, "drop", "prices", "--yes", "--json").stdout)["destination"] == "prices"
    assert Domain(root).destinations() == []
    assert "there is no destination 'orders'" in jmsq(root, "drop", "orders", "--yes", code=1).stderr


def test_drop_command_finishes_an_interrupted_drop(root: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """C14, C18: other commands work meanwhile, and `list` shows it."""
    send(root, "a")
    with monkeypatch.context() as patch:
        patch.setattr(LocalStorage, "delete_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            drop_destination(Domain(root), store, "orders", force=True)
    listed = jmsq(root, "list").stdout
    assert "prices" in listed
    assert "orders" not in listed
    assert "the rest of orders" in jmsq(root, "drop", "orders", "--dry-run").stdout
    assert "dropped the rest of orders" in jmsq(root, "drop", "orders", "--yes").stdout
    assert left(root, store) == []


def test_drop_command_removes_what_was_deleted_by_hand(root: str) -> None:
    """C14, C18."""
    shutil.rmtree(f"{root}/orders")
    assert "there is no destination" in jmsq(root, "drop", "orders", "--yes", code=1).stderr
    jmsq(root, "drop", "orders", "--yes", "--force")
    assert not Path(root, REGISTER, "orders").exists()


def test_rename_command(root: str) -> None:
    """C14, C18."""
    assert jmsq(root, "rename", "orders", "sales").stdout == "renamed orders to sales; its table stays at orders\n"
    assert json.loads(jmsq(root, "rename", "sales", "orders", "--json").stdout) == {
        "old": "sales",
        "new": "orders",
        "path": "orders",
    }
    assert "is the name of another destination" in jmsq(root, "rename", "orders", "prices", code=1).stderr


@pytest.mark.parametrize("damage", ["log", "entry"])
def test_damage_of_another_destination_stops_neither_rename_nor_drop(
    root: str, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C18: a destination that cannot be read is named in the log, and left out of those whose errorDestination counts."""
    first = Path(root, "prices/_delta_log", f"{0:020}.json")
    damaged = first if damage == "log" else Path(root, REGISTER, "prices")
    damaged.write_bytes(b"\x00 damaged")
    jmsq(root, "rename", "orders", "bills")
    jmsq(root, "drop", "bills", "--yes")
    assert Domain(root).register.names() == ["prices"]
    assert [record.args[:2] for record in caplog.records if isinstance(record.args, tuple) and record.args] == [
        ("orders", "prices"),
        ("bills", "prices"),
    ]


def test_errors_are_jmsq_errors() -> None:
    """C18: who handles a missing destination handles a dropped one."""
    assert issubclass(DestinationDroppedError, InvalidDestinationError)
    assert issubclass(DestinationInUseError, JmsqError)
