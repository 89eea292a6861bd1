"""A queue on three servers, each with a store of another kind, under load, while the stores fail one after the other (D4, D9, M10).

One thread sends all the time. One query receives all the time, in the thread of the caller. PostgreSQL is killed, the daemons
of the replicated store are stopped, and the folder of the file store is moved away.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import spark_jms
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber, open_subscriber
from spark_jms.claims.servers.stores import open_stores
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.services.daemons import Daemons

LIMIT_S = 180.0
MEMBERS = {"database": 0, "memory": 1, "folder": 2}
Key = tuple[int, int]  # member, sequence


@dataclass(frozen=True)
class Fault:
    what: str
    server: str
    fail: Callable[[], object]
    mend: Callable[[], object]


def make_domain(root: str, database: PrivatePostgresql, daemons: Daemons, lease: str) -> list[Fault]:
    """The domain, and one fault for each of its servers."""
    stores = {"database": database.uri("servers"), "memory": daemons.uri("servers"), "folder": "file"}
    orders = {"kind": "distributed-queue", "servers": list(stores)}
    servers = {name: {"store": store, "lease": lease} for name, store in stores.items()}
    spark_jms.apply(root, {"servers": servers, "destinations": {"orders": orders}})
    folder = Path(root) / "_jmsq" / "stores" / "folder"
    away = folder.with_name("away")

    def signal_daemons(number: int) -> None:
        for index in (0, 1):
            daemons.signal(index, number)

    return [
        Fault("PostgreSQL killed", "database", lambda: database.stop(signal.SIGKILL), database.start),
        Fault(
            "daemons stopped",
            "memory",
            lambda: signal_daemons(signal.SIGSTOP),
            lambda: signal_daemons(signal.SIGCONT),
        ),
        Fault("folder moved away", "folder", lambda: folder.rename(away), lambda: away.rename(folder)),
    ]


class Load:
    """A thread that sends one message after the other until it is stopped."""

    def __init__(self, root: str, pause_s: float) -> None:
        self.sent: dict[Key, float] = {}  # when its send returned
        self.longest_s = 0.0
        self._root, self._pause_s = root, pause_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)
        self._thread.start()

    def check(self) -> None:
        if self._error is not None:
            raise AssertionError("a send failed") from self._error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self.check()

    def _run(self) -> None:
        try:
            with (
                spark_jms.connect(self._root, housekeeping=False) as context,
                context.producer("orders") as producer,
            ):
                while not self._stop.wait(self._pause_s):
                    begun_s = time.monotonic()
                    at = producer.send(text="x")
                    ended_s = time.monotonic()
                    self.sent[at.member, at.sequence] = ended_s
                    self.longest_s = max(self.longest_s, ended_s - begun_s)
        except BaseException as error:  # noqa: BLE001 - `check` raises it in the caller's thread
            self._error = error


class Query:
    """Delivers what it gets to a sink, and continues."""

    def __init__(self, root: str, load: Load) -> None:
        domain = Domain(root)
        self.stores = open_stores(domain)
        subscriber = open_subscriber(domain, self.stores, "orders", None, "q", ConsumerSettings())
        assert isinstance(subscriber, Subscriber)
        self.subscriber, self.load = subscriber, load
        self.last = Batch("q", table=subscriber.table_id)
        self.sink: Counter[Key] = Counter()

    def step(self) -> None:
        batch = self.subscriber.next_batch(self.last, Limits())
        if batch is None:
            return
        assert not self.subscriber.resume(batch)
        for member, pick in batch.delivered.items():
            self.sink.update((member, number) for number in pick.picks.numbers().tolist())
        self.last = batch

    def until(self, done: Callable[[], bool], what: str) -> None:
        def look() -> bool:
            self.load.check()
            self.step()
            return done()

        wait_until(look, LIMIT_S, what)

    def delivered(self, without: str = "") -> int:
        return sum(member != MEMBERS.get(without) for member, _ in self.sink)

    def close(self) -> None:
        self.subscriber.close()
        self.stores.close()


def run_faults(root: str, faults: list[Fault], away_s: float, pause_s: float = 0.02) -> list[str]:
    """Runs each fault for `away_s`, and longer until the query has delivered 50 messages of the other servers. Asserts the order
    of events: down is committed, no message enters the member, the others are delivered, up is committed, messages enter it
    again and those that waited arrive. In the end each message has arrived exactly once. Returns figures."""
    table = Domain(root).log("orders")
    load = Load(root, pause_s)
    query, figures = Query(root, load), []
    try:
        query.until(lambda: {member for member, _ in query.sink} == {0, 1, 2}, "a message of each member")
        for fault in faults:
            figures.append(_run_fault(table, query, fault, away_s))
        load.stop()
        query.until(lambda: query.sink.keys() >= load.sent.keys(), "everything sent is delivered")
        assert query.sink.keys() == load.sent.keys()
        assert set(query.sink.values()) == {1}, "a message came twice"
        figures.append(f"{len(load.sent):,} messages, each once; the longest send took {load.longest_s * 1000:.0f} ms")
    finally:
        for fault in faults[1:2]:
            fault.mend()  # stopped processes must not outlive the test
        load.stop()
        query.close()
    return figures


def _run_fault(table: DeltaLog, query: Query, fault: Fault, away_s: float) -> str:
    member, load = MEMBERS[fault.server], query.load
    failed_s, failed_ms = time.monotonic(), now_ms()
    fault.fail()
    query.until(lambda: fault.server in table.refresh().destination.down, f"{fault.what}: down")
    down_s = (table.snapshot.destination.down[fault.server] - failed_ms) / 1000
    at_down = table.snapshot.last_sequence(member)
    before = query.delivered(fault.server)
    query.until(
        lambda: query.delivered(fault.server) >= before + 50 and time.monotonic() - failed_s >= away_s,
        f"{fault.what}: messages of the other servers",
    )
    assert fault.server in query.subscriber.away()
    assert table.refresh().last_sequence(member) == at_down, "a message was sent to a server that is down"
    assert set(table.snapshot.destination.down) == {fault.server}
    there = [ended_s for (at, _), ended_s in list(load.sent.items()) if at == member]
    elsewhere_s = max(max(there, default=0.0) - failed_s, 0.0)
    waiting = {key for key in list(load.sent) if key[0] == member} - query.sink.keys()
    mended_s = time.monotonic()
    fault.mend()
    query.until(lambda: not table.refresh().destination.down, f"{fault.what}: up")
    up_s = time.monotonic() - mended_s
    query.until(lambda: table.refresh().last_sequence(member) > at_down, f"{fault.what}: messages go there again")
    query.until(lambda: waiting <= query.sink.keys(), f"{fault.what}: those that waited")
    back_s = time.monotonic() - mended_s
    return (
        f"{fault.what}: the last message went there after {elsewhere_s:.1f} s, down after {down_s:.1f} s; up {up_s:.1f} s after "
        f"the end, its {len(waiting)} waiting messages after {back_s:.1f} s"
    )
