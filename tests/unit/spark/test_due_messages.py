"""The operator of expiration, with a handle that keeps state and timers as Spark does (T6, M12)."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.core.changes.change import MINUTE_MS
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.errors import OptionError
from spark_jms.jobs.expiration import DueMessagesProcessor
from spark_jms.settings.options import Options
from spark_jms.spark.expiration_sink import DUE_COLUMNS, ExpirationWriter

KEY = ("t", 2)


class Operator:
    """One key: its value, its timers, and what came out. A batch may be repeated from the state before it."""

    def __init__(self) -> None:
        self.value: Any = None
        self.timers: set[int] = set()
        self.processor = DueMessagesProcessor()
        self.processor.init(self)  # type: ignore[arg-type]

    # what Spark's handle has
    def getValueState(self, name: str, schema: str) -> Any:
        def update(value: Any) -> None:
            self.value = value

        return SimpleNamespace(get=lambda: self.value, update=update, clear=lambda: update(None))

    def registerTimer(self, at_ms: int) -> None:
        self.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:
        self.timers.remove(at_ms)

    def batch(self, rows: list[tuple[str, int, Ranges, int]], now_ms: int) -> Ranges:
        """What was handed to the sink."""
        times = SimpleNamespace(getCurrentProcessingTimeInMs=lambda: now_ms)
        if rows:
            frame = pd.DataFrame(
                [(kind, "orders", last, json.dumps([*map(list, picks)]), minute) for kind, last, picks, minute in rows],
                columns=["kind", "destination", "last", "ranges", "due_minute"],
            )
            assert [*self.processor.handleInputRows(KEY, iter([frame]), times)] == []  # type: ignore[arg-type]
        handed = EMPTY
        for at_ms in sorted(timer for timer in self.timers if timer <= now_ms):
            self.timers.discard(at_ms)
            info = SimpleNamespace(getExpiryTimeInMs=lambda at_ms=at_ms: at_ms)
            self.timers.add(at_ms)  # Spark deletes it behind the call
            for out in self.processor.handleExpiredTimer(KEY, times, info):  # type: ignore[arg-type]
                assert {*zip(out["table"], out["destination"], out["member"], strict=True)} == {("t", "orders", 2)}
                for text in out["ranges"]:
                    handed = handed | Ranges.from_json(json.loads(text))
            self.timers.discard(at_ms)
        return handed


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 6), st.booleans()), min_size=1, max_size=12))
def test_every_message_is_handed_over_once_its_minute_has_come(steps: list[tuple[int, int, bool]]) -> None:
    """T6: by the batch of its minute, and again until it is done; one timer at most, at the next minute of the map."""
    operator, last, minute, floor = Operator(), 0, 100, 0
    due: dict[int, int] = {}
    handed = EMPTY
    for count, later, finish in steps:
        picks = Ranges.of((last + 1, last + count))
        due |= dict.fromkeys(range(last + 1, last + count + 1), minute + later)
        last += count
        rows = [("sent", last, picks, minute + later)]
        if finish and handed:
            floor = handed.first
            rows.append(("done", floor, EMPTY, 0))
        handed = handed | operator.batch(rows, minute * MINUTE_MS + 7)
        over = [number for number, at in due.items() if at <= minute and number > floor]
        assert all(handed.between(number, number) for number in over)
        assert len(operator.timers) <= 1
        assert all(timer > minute * MINUTE_MS for timer in operator.timers)
        minute += 1
    for _ in range(12):
        handed = handed | operator.batch([], minute * MINUTE_MS)
        minute += 1
    assert all(handed.between(number, number) for number in due if number > floor)


def test_dropped_table_leaves_nothing() -> None:
    """T6: neither state nor a timer; it would fire every 15 minutes for ever."""
    operator = Operator()
    assert operator.batch([("sent", 3, Ranges.of((1, 3)), 200)], 100 * MINUTE_MS) == EMPTY
    assert operator.timers == {200 * MINUTE_MS}
    operator.batch([("gone", 0, EMPTY, 0)], 101 * MINUTE_MS)
    assert (operator.value, operator.timers) == (None, set())


def test_messages_that_cannot_be_read_are_handed_over_until_they_are_done() -> None:
    """T6: they may be over, so the sink looks at once, and again."""
    operator = Operator()
    assert operator.batch([("unread", 3, Ranges.of((1, 3)), 100)], 100 * MINUTE_MS) == Ranges.of((1, 3))
    assert operator.batch([], 101 * MINUTE_MS) == Ranges.of((1, 3))
    operator.batch([("done", 3, EMPTY, 0)], 101 * MINUTE_MS)
    assert operator.timers == set()


def test_sink_names_the_columns_that_it_lacks() -> None:
    """T6: before the query has begun."""
    options = Options(root="/data/messages", destination="*", action="expire")
    schema: Any = SimpleNamespace(names=["table", "member"])
    with pytest.raises(OptionError, match="lacks destination, ranges"):
        ExpirationWriter(options, schema, overwrite=False)
    schema.names = [*DUE_COLUMNS]
    with pytest.raises(OptionError, match="append mode"):
        ExpirationWriter(options, schema, overwrite=True)
