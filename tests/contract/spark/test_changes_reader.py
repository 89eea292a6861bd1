"""The reader of the change feed as Spark calls it: killed at any moment, beside everything that changes tables (M12)."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.admin.destinations import rename_destination
from spark_jms.admin.purge import drop_backlog
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.client import Context
from spark_jms.core.changes.change import NOTHING_READ
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.upkeep.clean_up import CleanUp, checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.settings.types import Use
from spark_jms.spark.changes import ChangesStreamReader
from spark_jms.spark.options import parse_options
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import send_texts, texts_now

Row = dict[str, Any]
QUEUE = {"kind": "distributed-queue", "members": 2, "file_grace_ms": 0}


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain("file", orders=QUEUE, news="topic") as root, connect(root, housekeeping=False) as made:
        yield made


class Query:
    """What Spark keeps of a query: the offset logs. Its processes come and go; the sink takes each batch once, by its number."""

    def __init__(self, root: str, draw: random.Random, **options: str) -> None:
        given = {"root": root, "destination": "*", "view": "changes", "maxMessagesPerTrigger": "40", **options}
        self._options, self._draw = parse_options(given, Use.READ_STREAM), draw
        self.logged: list[dict[str, Any]] = []  # the end of each batch
        self.taken: list[list[Row]] = []  # by the sink
        self._reader = ChangesStreamReader(self._options)

    def restart(self) -> None:
        self._reader = ChangesStreamReader(self._options)

    def step(self) -> bool:
        """One batch, or a part of it: the process is killed somewhere. False: there was nothing new."""
        number = len(self.taken)
        start = self.logged[number - 1] if number else self._reader.initialOffset()
        if len(self.logged) == number:
            end = json.loads(json.dumps(self._reader.latestOffset(start, ReadMaxRows(self._options.max_messages or 0))))
            if end == start:
                return False
            if self._draw.random() < 0.1:
                self.restart()  # before the end is logged
                return True
            self.logged.append(end)
        if self._draw.random() < 0.3:
            self.restart()
        rows = [row for part in self._reader.partitions(start, self.logged[number]) for row in self._read(part)]
        if self._draw.random() < 0.3:
            return True  # before the sink has taken it
        self.taken.append(rows)
        return True

    def _read(self, part: Any) -> list[Row]:
        """A task has a reader of its own."""
        return [row for batch in ChangesStreamReader(self._options).read(part) for row in batch.to_pylist()]

    def rows(self) -> list[Row]:
        return [row for batch in self.taken for row in batch]


def keep_house(context: Context, name: str, draw: random.Random) -> None:
    keeper = Housekeeper(domain_of(context), records_of(context), name)
    try:
        for log in keeper.rounds.logs.values():
            if draw.random() < 0.5:
                compact(log)
            if draw.random() < 0.5:
                checkpoint(log)
                CleanUp(log).run()
        if draw.random() < 0.5:
            assert keeper.run()
    finally:
        keeper.close()


@pytest.mark.parametrize("seed", range(6))
def test_every_number_once_whatever_is_killed(context: Context, seed: int) -> None:
    """M12: sends, acknowledgements, a purge of the backlog, a rename, compaction, clean-up and purge beside a query that is killed
    before and after each of its steps: each message was sent once (or gone, if it was purged before), and ended once."""
    draw, query, name = random.Random(seed), Query(context.root, random.Random(seed + 100)), "orders"
    finished = Counter[str]()
    for _ in range(60):
        match draw.choice(["send", "send", "finish", "purge", "house", "rename", "query", "query", "query"]):
            case "send":
                expiring = {"time_to_live": f"{draw.randrange(1, 9)} h"} if draw.random() < 0.5 else {}
                context.producer(name).send_many({"text": "x", **expiring} for _ in range(draw.randrange(1, 30)))
            case "finish":
                with context.consumer(name) as consumer:
                    finished["finished"] += sum(one is not None for one in texts_now(consumer, draw.randrange(1, 25)))
            case "purge":
                if draw.random() < 0.3:
                    dropped = drop_backlog(domain_of(context), records_of(context), name, None, [0, 1], 5).dropped
                    finished["purged"] += dropped
            case "house":
                keep_house(context, name, draw)
            case "rename":
                if draw.random() < 0.3:
                    new = "sales" if name == "orders" else "orders"
                    rename_destination(domain_of(context), records_of(context), name, new, force=True)
                    name = new
            case "query":
                query.step()
    while query.step():
        pass
    rows = query.rows()
    snapshot = domain_of(context).log(name).refresh()
    for member in range(2):
        mine = [row for row in rows if row["member"] == member]
        begun = [row for row in mine if row["kind"] in ("sent", "gone")]
        parts = [Ranges.of((row["first"], row["last"])) if row["ranges"] is None else pairs(row) for row in begun]
        assert sum(part.count for part in parts) == snapshot.last_sequence(member)
        whole = Ranges.of(*(pair for part in parts for pair in part))
        assert (whole.first, whole.count) == (1, snapshot.last_sequence(member))
        ends = [pairs(row) for row in mine if row["kind"] not in ("sent", "gone")]
        assert sum(part.count for part in ends) == Ranges.of(*(pair for part in ends for pair in part)).count
    assert {row["detail"] for row in rows if row["kind"] == "gone"} <= {"sent"}
    found = Counter[str]()
    for row in rows:
        if row["kind"] not in ("sent", "gone"):
            found[row["kind"]] += row["messages"]
    assert found == +finished
    assert {row["table"] for row in rows} == {snapshot.table_id}


def pairs(row: Row) -> Ranges:
    return Ranges.from_json(json.loads(row["ranges"]))


def test_ends_come_after_beginnings(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """M12: a message that is sent and acknowledged while the reader looks has not ended before it was sent."""
    send_texts(context, "a")
    looked, refresh = list[str](), DeltaLog.refresh

    def beside(log: DeltaLog, *, dropped: bool = False) -> Any:
        found = refresh(log, dropped=dropped)
        if not looked:
            looked.append(log.name)
            with connect(context.root, housekeeping=False) as other:
                send_texts(other, "b", "c")
                with other.consumer("orders") as consumer:
                    assert None not in texts_now(consumer, 3)
        return found

    monkeypatch.setattr(DeltaLog, "refresh", beside)
    newest = FeedTables(domain_of(context), "orders").newest(NOTHING_READ)
    monkeypatch.undo()
    (table,) = newest.tables.values()
    assert sum(table.sent.values()) == 3
    assert sum(table.rows.values()) == 0
    assert looked == ["acknowledgements of orders"]


def test_latest_is_fixed_by_the_first_batch(context: Context) -> None:
    """M12: a query that dies before its first batch is done begins where it began, and continues for another process."""
    send_texts(context, "a", "b")
    query = Query(context.root, random.Random(2), startingPosition="latest")
    assert any(query.step() and query.logged for _ in range(20))
    send_texts(context, "c")
    query.restart()
    while query.step():
        pass
    assert [(row["kind"], row["messages"]) for row in query.rows()] == [("sent", 1)]
