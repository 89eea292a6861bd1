"""The reader of the change feed as Spark's driver calls it, without Spark (M12, T6)."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.log.changes.rows import changes_of
from spark_jms.settings.options import Options
from spark_jms.spark import changes
from spark_jms.spark.changes import ChangesStreamReader
from spark_jms.spark.options import parse_options
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import receive


def feed_options(root: str, timers: bool) -> Options:
    return parse_options({"root": root, "destination": "*", "view": "changes", "forTimers": str(timers).lower()})


def rows_of(reader: ChangesStreamReader, start: Any, end: Any) -> list[tuple[str, int, int | None]]:
    parts: Any = reader.partitions(start, end)
    return [(row.kind, row.member, row.last) for part in parts for row in changes_of(part.part)]


@pytest.mark.parametrize("timers", [True, False])
def test_query_with_timers_has_a_batch_at_its_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, *, timers: bool
) -> None:
    """T6: the first offset of a process is a new one without news, and has no rows; the second is the same. Others stay idle."""
    monkeypatch.setattr(changes, "IDLE_WAIT_S", 0.0)
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    options = feed_options(root, timers)
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="x")
    first = ChangesStreamReader(options)
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    assert rows_of(first, begin, end) == [("sent", 0, 1)]
    again = ChangesStreamReader(options)  # of a process that begins
    woken = again.latestOffset(end, ReadAllAvailable())
    assert (woken != end) == timers
    assert rows_of(again, end, woken) == []
    assert again.latestOffset(woken, ReadAllAvailable()) == woken


@pytest.mark.parametrize("timers", [True, False])
def test_purged_messages_are_done_for_a_query_with_timers(tmp_path: Any, *, timers: bool) -> None:
    """M12: so it forgets them; other readers have no such rows."""
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    reader = ChangesStreamReader(feed_options(root, timers))
    with connect(root, housekeeping=False) as context:
        for _ in range(2):
            context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        receive(context, 4)
        rounds = Rounds(domain_of(context), records_of(context), clean_up=False)
        assert rounds.run(["orders"])[0].purged_messages == 3
        rounds.close()
    end = reader.latestOffset(begin, ReadAllAvailable())
    done = [row for row in rows_of(reader, begin, end) if row[0] == "done"]
    assert done == ([("done", 0, 3)] if timers else [])
