"""More senders than a shared quota has room for, clients and a streaming query, some of which are killed (T1, T2): the run and
its account."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms import apply, connect
from spark_jms.client import Context, Message
from spark_jms.core.limits.quota import PREEMPTIVE, Limit
from spark_jms.log.limits.quota_ledger import LEDGERS, LedgerEntry, QuotaLedger
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.domains.quota_checks import check_entries
from tests.harness.processes import forked
from tests.harness.project import PROGRAMS, PROJECT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

SENDER = PROGRAMS / "overload_sender.py"
DESTINATIONS = ("orders", "returns", "limited")  # the last one is the query's
MAXIMUM = 10_000
LIMIT_S = 100
_POLL_S = 0.01


@dataclass(frozen=True)
class Plan:
    """`rounds`: in each a sender is killed while it waits and another one while it holds a reservation. As many more as there is
    time for in `seconds`. `batches`: that each sender sends at least after them."""

    policy: str
    rounds: int = 1
    seconds: float = 0
    batches: int = 1


@dataclass
class Outcome:
    """`late`: sends whose time-out was over."""

    entries: int = 0
    messages: int = 0
    late: int = 0
    killed: int = 0
    waited: int = 0  # requests that were registered
    longest_queue: int = 0
    received: Counter[str] = field(default_factory=Counter)


class Sender:
    """A process of overload_sender.py. Its sender k is called `NAME.k`."""

    def __init__(self, root: str, destination: str, file: Path, sizes: list[int], timeout: str = "90s", hold: int = 0):
        self._file, self.sizes = file, sizes
        arguments = [root, destination, str(file), timeout, str(hold), *map(str, sizes)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        self.process = forked.Popen([sys.executable, str(SENDER), *arguments], env=environment)

    def senders(self) -> list[Path]:
        return [Path(f"{self._file}.{k}") for k in range(len(self.sizes))]

    def sent(self) -> list[int]:
        """How many batches of each sender."""
        return [len(lines(file, "sent")) for file in self.senders()]

    @property
    def holds(self) -> bool:
        return self._file.with_suffix(".holding").exists()

    def ask_to_stop(self) -> None:
        self._file.with_suffix(".stop").touch()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(LIMIT_S)


def lines(file: Path, what: str) -> list[list[str]]:
    """The lines that begin so, as words; without the unfinished one of a killed process."""
    if not file.exists():
        return []
    whole = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [line.split(" ", 3) for line in whole if line.startswith(f"{what} ")]


class Copies(threading.Thread):
    """Copies each entry of a ledger, before the senders delete it."""

    def __init__(self, root: str, ledger: str, folder: Path) -> None:
        super().__init__(daemon=True)
        self._from, self._to = Path(root, LEDGERS, ledger), folder / LEDGERS / ledger
        self._to.mkdir(parents=True)
        self._copied: set[str] = set()
        self._ends = threading.Event()
        self.ledger = QuotaLedger(LocalStorage(folder), ledger)

    def run(self) -> None:
        while not self._ends.wait(_POLL_S):
            self.copy()

    def copy(self) -> None:
        for name in sorted(os.listdir(self._from)) if self._from.exists() else ():
            if name.isdecimal() and name not in self._copied:
                os.link(self._from / name, self._to / name)
                self._copied.add(name)

    def all(self) -> list[LedgerEntry]:
        self._ends.set()
        self.join()
        self.copy()
        return self.ledger.history()


class Drain(threading.Thread):
    """Receives from all destinations in turn, more slowly than they are sent to."""

    def __init__(self, context: Context) -> None:
        super().__init__(daemon=True)
        self._context, self._ends = context, threading.Event()
        self.texts: Counter[str] = Counter()
        self.failed: Exception | None = None

    def run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - `end` raises it
            self.failed = error

    def _receive(self) -> None:
        with ExitStack() as stack:
            consumers = [stack.enter_context(self._context.consumer(name)) for name in DESTINATIONS]
            while not self._ends.is_set():
                for consumer in consumers:
                    last: Message | None = None
                    for _ in range(100):
                        message = consumer.receive(timeout=0)
                        if message is None:
                            break
                        last = message
                        self.texts[str(message.text)] += 1
                    if last is not None:
                        last.acknowledge()

    def end(self) -> Counter[str]:
        """What was received; the rest is still there."""
        self._ends.set()
        self.join(LIMIT_S)
        if self.failed is not None:
            raise self.failed
        assert not self.is_alive(), "the consumers do not end"
        return self.texts


def run_overload(spark: SparkSession, tmp_path: Path, plan: Plan) -> Outcome:
    """Raises AssertionError when the ledger exceeds the maximum, a sender is overtaken, or messages are lost or doubled."""
    root, limit, outcome = str(tmp_path / "root"), Limit(MAXIMUM, policy=plan.policy), Outcome()
    quota = {"messagesMaximum": MAXIMUM, "policy": plan.policy}
    apply(
        root,
        {
            "quotas": {"small": quota},
            "destinations": {name: {"kind": "queue", "quota": "small"} for name in DESTINATIONS},
        },
    )
    copies = Copies(root, "small", tmp_path / "kept")
    copies.start()
    work = tmp_path / "work"
    work.mkdir()
    with ExitStack() as stack:

        def start(name: str, destination: str, sizes: list[int], timeout: str = "90s", hold: int = 0) -> Sender:
            sender = Sender(root, destination, work / name, sizes, timeout, hold)
            stack.callback(sender.process.wait, LIMIT_S)
            stack.callback(sender.process.kill)
            return sender

        living = [start("bulk", "orders", [400, 900, 1_500]), start("small", "returns", [50, 300])]
        hasty = start("hasty", "orders", [700], timeout="100 ms")
        query = stack.enter_context(endless_query(spark, root, tmp_path))
        context = stack.enter_context(connect(root))
        ledger = domain_of(context).quotas.ledger("small", limit, "orders")
        wait_until(lambda: ledger.read().state.waiting, LIMIT_S, what="the quota to be full")
        drain = Drain(context)
        drain.start()
        begun, rounds = time.monotonic(), 0
        while rounds < plan.rounds or time.monotonic() - begun < plan.seconds:
            rounds += 1
            # Fewer than others ask for: with Preemptive, large requests may starve.
            holds = start(f"holds{rounds}", "orders", [20], hold=2 - rounds % 2)
            waits = start(f"waits{rounds}", "returns", [600])
            kill_waiting(waits, ledger)
            wait_until(lambda one=holds: one.holds, LIMIT_S, what="a sender to hold a reservation")  # type: ignore[misc]
            holds.kill()
            outcome.killed += 2
            before = [sender.sent() for sender in living]
            wait_until(lambda: progressed(living, before, plan), LIMIT_S, what=lambda: _progress(living, before))  # noqa: B023
        for sender in (*living, hasty):
            sender.ask_to_stop()
        for sender in (*living, hasty):
            assert sender.process.wait(LIMIT_S) == 0
        batches = batches_of(query)
        wait_until(lambda: batches_of(query) > batches, LIMIT_S, what="the query to send a batch")
        query.stop()
        assert query.exception() is None
        outcome.received = drain.end()
        left = [str(message.text) for name in DESTINATIONS for message in context.browser(name)]
        outcome.received.update(left)
        wait_until(lambda: domain_of(context).quotas.now(ledger).state.used.messages == len(left), LIMIT_S)
        # The requests of killed senders, and that of the stopped query, wait until each process has seen them unchanged for WAITING_S.
        wait_until(
            lambda: domain_of(context).quotas.now(ledger).state.waiting == [],
            LIMIT_S,
            what="dead senders' requests to lapse",
        )
    entries = copies.all()
    check_entries(entries, limit)
    check_account(work, outcome)
    outcome.entries, outcome.messages = len(entries), outcome.received.total()
    outcome.longest_queue = max(len(entry.state.waiting) for entry in entries)
    outcome.waited = len({one.request.id for entry in entries for one in entry.state.waiting})
    return outcome


@contextmanager
def endless_query(spark: SparkSession, root: str, folder: Path) -> Iterator[StreamingQuery]:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 500).option("numPartitions", 1).load()
    writer = rows.selectExpr("concat('query:', value) AS text").writeStream.format("jmsq").option("root", root)
    writer = (
        writer.option("sendTimeout", "5 min")
        .option("destination", DESTINATIONS[2])
        .option("checkpointLocation", str(folder / "checkpoint"))
    )
    query = writer.start()
    try:
        yield query
    finally:
        query.stop()


def batches_of(query: StreamingQuery) -> int:
    """That it has sent."""
    assert query.isActive, query.exception()
    progress = query.lastProgress
    return int(progress["batchId"]) if progress else -1


def kill_waiting(sender: Sender, ledger: QuotaLedger) -> None:
    """kill -9, while its request waits for certain: it is stopped first."""
    by = f"process {sender.process.pid} of "

    def waits() -> bool:
        return any(one.request.by.startswith(by) for one in ledger.read().state.waiting)

    def stopped_while_it_waits() -> bool:
        if not waits():
            return False
        sender.process.send_signal(signal.SIGSTOP)
        if not waits():
            sender.process.send_signal(signal.SIGCONT)
            return False
        return True

    wait_until(stopped_while_it_waits, LIMIT_S, what="a sender to wait")
    sender.kill()


def progressed(senders: list[Sender], before: list[list[int]], plan: Plan) -> bool:
    """With FIFO each of them has sent so many more; with Preemptive, where large ones may starve, one of them."""
    pairs = zip(senders, before, strict=True)
    grown = [now - then for one, known in pairs for now, then in zip(one.sent(), known, strict=True)]
    return (max if plan.policy == PREEMPTIVE else min)(grown) >= plan.batches


def _progress(senders: list[Sender], before: list[list[int]]) -> str:
    return f"batches of each sender: {[sender.sent() for sender in senders]}, before {before}"


def check_account(work: Path, outcome: Outcome) -> None:
    """Each message that was sent was received once, or is there once; and of a batch all or none."""
    assert set(outcome.received.values()) == {1}, "none is there twice"
    found: Counter[tuple[str, str]] = Counter()
    for text in outcome.received:
        sender, _, number = text.rpartition(":")[0].rpartition(":")
        if sender:
            found[sender, number] += 1
    numbers = sorted(int(text.removeprefix("query:")) for text in outcome.received if text.startswith("query:"))
    assert numbers == list(range(len(numbers))), "of the query each row, in whole batches"
    assert len(numbers) % 500 == 0
    for file in sorted(work.glob("*.[0-9]")):
        sent = {number: int(size) for _, number, size in lines(file, "sent")}
        for number, size in sent.items():
            assert found.pop((file.name, number)) == size, f"batch {number} of {file.name}"
        late = lines(file, "late")
        for _, number, size, error in late:
            told = f"quota small has no room for {int(size):,} message(s)"
            assert told in error, (number, error)
            assert "Nothing was sent" in error
        outcome.late += len(late)
        unknown = {number: int(size) for _, number, size in lines(file, "try") if number not in sent}
        assert len(unknown) <= 1, "only the last one was not sent"
        for number, size in unknown.items():
            assert found.pop((file.name, number), 0) in (0, size), f"the last batch of {file.name}: all or none"
    assert not found, "none that no sender has tried to send"
    assert outcome.late, "a sender with a short time-out was late"
