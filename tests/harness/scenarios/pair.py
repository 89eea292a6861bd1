"""Two Spark applications, A and B, that share one queue: each a single consumer stream into its own Delta table."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.log.destinations.declarations import apply_destinations
from tests.harness.domains.feed import QUEUE, consumer, make_queue, send_numbers
from tests.harness.processes.apps import App, until
from tests.harness.processes.crash import CrashDirectory
from tests.harness.scenarios import account

MEMBERS = 4
RECEIVE_S = 90.0


@dataclass(frozen=True)
class OpenClaim:
    """The claim that A's newest offset names, of the batch that A works on."""

    claim: str
    consumer: str
    picks: dict[int, Ranges]
    batch: int

    def holds(self, row: account.Row) -> bool:
        return bool(self.picks.get(row.member, EMPTY).between(row.sequence, row.sequence))

    @property
    def count(self) -> int:
        return sum(picks.count for picks in self.picks.values())


class Consumer:
    """One application with one consumer stream."""

    def __init__(self, name: str, path: Path, root: Path, per_batch: int) -> None:
        self.checkpoint, self.table = path / f"checkpoint-{name}", path / f"output-{name}"
        self.crash = CrashDirectory(path / f"crash-{name}")
        stream = consumer(root, self.table, self.checkpoint, per_batch)
        self.app = App(path / f"app-{name}", {"consumer": stream}, crash=self.crash.path)

    @property
    def rows(self) -> list[account.Row]:
        return account.rows_of(self.table)

    @property
    def count(self) -> int:
        return account.count_of(self.table)

    def newest(self, kind: str) -> int:
        numbers = [int(f.name) for f in (self.checkpoint / kind).glob("*") if f.name.isdigit()]
        return max(numbers, default=-1)

    def open_claim(self) -> OpenClaim:
        batch = self.newest("offsets")
        offset = json.loads((self.checkpoint / "offsets" / str(batch)).read_text().splitlines()[-1])
        picks = {int(m): Ranges.from_json(entry["pick"]) for m, entry in offset["members"].items()}
        return OpenClaim(offset["claim"], offset["consumer"], picks, batch)

    def failures(self, after: int = 0) -> list[dict[str, Any]]:
        return self.app.events("failed")[after:]


class Pair:
    """The queue, the consumers A and B, and a producer in this process."""

    def __init__(self, path: Path, a_per_batch: int = 40, b_per_batch: int = 400) -> None:
        self.root = path / "domain"
        self.domain = make_queue(self.root, in_doubt_timeout_ms=60_000)
        self.a = Consumer("A", path, self.root, a_per_batch)
        self.b = Consumer("B", path, self.root, b_per_batch)
        self.sent = 0
        self._turn = 0

    def in_doubt_timeout(self, ms: int) -> None:
        wanted = Destination(QUEUE, "distributed-queue", MEMBERS, in_doubt_timeout_ms=ms)
        apply_destinations(self.domain, [wanted], lambda *_: False)

    def send(self, count: int, *, units: bool = True) -> None:
        """Send in one commit. A message without a unit of order goes to the members in turn."""
        send_numbers(self.domain, range(self.sent, self.sent + count), self._turn, units=units)
        self._turn += 1
        self.sent += count

    def ready(self) -> None:
        """Start each application that does not run, and wait until both consumers receive and the queue is empty."""
        for one in (self.a, self.b):
            if not one.app.alive:
                one.app.start()
        before = {one: one.count for one in (self.a, self.b)}

        def feed() -> bool:
            if self.backlog() == 0:
                self.send(80)
            return all(one.count > before[one] for one in before)

        def check_alive() -> None:
            for one in before:
                one.app.check_alive()

        until("both consumers to receive", feed, RECEIVE_S, or_fail=check_alive)
        self.drained()

    def states(self) -> dict[int, RecordSet]:
        """member -> its record set in the store."""
        with views.opened_store(self.domain) as store:
            return views.states(self.domain, store, QUEUE, None)

    def backlog(self) -> int:
        with views.opened_store(self.domain) as store:
            return sum(row.backlog for row in views.subscriptions(self.domain, store, QUEUE))

    def holds(self, one: Consumer) -> list[int]:
        """The members whose record this consumer owns."""
        name = one.open_claim().consumer
        with views.opened_store(self.domain) as store:
            rows = views.subscriptions(self.domain, store, QUEUE)
        return [row.member for row in rows if any(name in consumer for consumer in row.consumers)]

    def drained(self, timeout_s: float = RECEIVE_S) -> None:
        until("an empty queue", lambda: self.backlog() == 0, timeout_s)

    def doubled(self) -> list[int]:
        return account.missing_and_doubled([*self.a.rows, *self.b.rows], self.sent)[1]

    def check_nothing_lost(self) -> None:
        rows = [*self.a.rows, *self.b.rows]
        missing, _ = account.missing_and_doubled(rows, self.sent)
        assert not missing, f"{len(missing)} of {self.sent} messages are lost: {missing[:20]}"
        account.check_dense(rows, account.last_sequences(self.root, QUEUE, MEMBERS))
        for one in (self.a, self.b):
            account.check_unit_order(one.rows)

    def acknowledged_by(self, claim: str) -> list[dict[str, Any]]:
        table = DeltaTable(self.root / "_jmsq" / "acknowledgements" / QUEUE).to_pyarrow_table()
        return [row for row in table.to_pylist() if row["claim"] == claim]
