"""Rows and positions of the change feed, as values (M12)."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.changes.change import (
    ALL_KINDS,
    ENDINGS,
    MESSAGES,
    MINUTE_MS,
    NOTHING_READ,
    FeedPosition,
    FeedSpan,
    Run,
    SentRows,
    TablePosition,
    due_minute,
    ended,
)
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.errors import FormatVersionError, OffsetError, StaleDomainError

NUMBERS = st.dictionaries(st.integers(0, 4), st.integers(0, 50), max_size=4)
TABLES = st.dictionaries(
    st.sampled_from(["t1", "t2", "t3"]),
    st.builds(
        TablePosition, st.sampled_from(["a", "b"]), NUMBERS, NUMBERS, st.dictionaries(st.integers(0, 4), st.just("q"))
    ),
)
POSITIONS = st.builds(FeedPosition, st.just("life"), st.integers(0, 10**6), TABLES, st.sampled_from(["*", "a"]))
SPAN = FeedSpan(MESSAGES, "t1", "orders", 0, 1, 10**6, 77, "q")


def grown(before: FeedPosition, more: FeedPosition) -> FeedPosition:
    """A later position: what both have, added up; tables that only one has stay or are new."""
    tables = {}
    for table, new in (before.tables | more.tables).items():
        old, plus = before.tables.get(table, TablePosition("a")), more.tables.get(table, TablePosition("a"))
        sent = {m: old.sent.get(m, 0) + plus.sent.get(m, 0) for m in {*old.sent, *plus.sent}}
        rows = {m: old.rows.get(m, 0) + plus.rows.get(m, 0) for m in {*old.rows, *plus.rows}}
        tables[table] = replace(new, sent=sent, rows=rows)
    return FeedPosition("life", before.at_ms + more.at_ms, tables)


@given(POSITIONS)
def test_position_is_read_as_it_was_written(position: FeedPosition) -> None:
    """M12: as an offset of Spark, and as text."""
    assert FeedPosition.from_json(json.loads(json.dumps(position.to_json()))) == position
    assert FeedPosition.from_text(position.to_text()) == position
    assert position.spans(position) == position.dropped(position) == []


@given(POSITIONS, POSITIONS, st.integers(1, 40))
def test_limited_batches_have_each_number_once(start: FeedPosition, more: FeedPosition, most: int) -> None:
    """M12: their spans are those of one large batch; a batch takes no more than it may, and rows of a table come once all its
    messages do."""
    newest = grown(start, more)
    wanted = {(s.what, s.table, s.member): Ranges.of((s.first, s.last)) for s in start.spans(newest)}
    found: dict[tuple[str, str, int], list[Ranges]] = {}
    here = start
    while here.spans(newest):
        end = here.towards(newest, most)
        spans = here.spans(end)
        assert 0 < sum(span.size for span in spans) <= most
        for span in spans:
            if span.what == ENDINGS:
                assert end.tables[span.table].sent == newest.tables[span.table].sent
            found.setdefault((span.what, span.table, span.member), []).append(Ranges.of((span.first, span.last)))
        here = end
    assert {key: union(parts) for key, parts in found.items()} == wanted
    assert sum(part.count for parts in found.values() for part in parts) == sum(one.count for one in wanted.values())
    assert here.tables.keys() == newest.tables.keys()


@given(POSITIONS, st.booleans())
def test_older_numbers_and_other_lives_are_refused(position: FeedPosition, life: bool) -> None:
    """M12, D2: a restored domain, or another one."""
    if life:
        with pytest.raises(StaleDomainError):
            position.spans(replace(position, life="another"))
        assert NOTHING_READ.spans(position) is not None
        return
    later = {table: replace(one, sent={**one.sent, 9: 1}) for table, one in position.tables.items()}
    if later:
        with pytest.raises(StaleDomainError, match="an older copy of the domain was restored"):
            replace(position, tables=later).spans(position)


def test_positions_that_are_none_are_named() -> None:
    """M12: and those of a later release."""
    for wrong in (
        None,
        [],
        {},
        {"v": 1},
        {"v": "x"},
        {"v": 1, "life": "", "at": 0, "d": "", "t": {"i": {"n": "a", "s": {"0": -1}, "a": {}}}},
    ):
        with pytest.raises(OffsetError, match="take one that `changes` has given"):
            FeedPosition.from_json(wrong)
    with pytest.raises(FormatVersionError, match="version 2"):
        FeedPosition.from_json({"v": 2})


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2), st.none() | st.integers(1, 2)), max_size=30), st.data())
def test_rows_are_the_same_however_messages_are_in_files(
    runs: list[tuple[int, int, int | None]], data: st.DataObject
) -> None:
    """M12: one row for each minute and due minute; pieces of a run in several files are one run; bytes are those of whole files."""

    def rows(pieces: list[Run]) -> list[tuple[object, ...]]:
        collected = SentRows(SPAN)
        found = [change for piece in pieces for change in collected.add([piece])] + list(collected.end())
        return [(one.ranges, one.messages, one.at_ms, one.due_ms, one.bytes) for one in found]

    whole, cut, first = list[Run](), list[Run](), 1
    for count, minute, due in runs:
        times = (minute * MINUTE_MS, None if due is None else due * MINUTE_MS)
        whole.append(Run(first, first + count - 1, *times, 10 * count))
        at = data.draw(st.integers(first, first + count - 1))
        cut += [Run(first, at, *times, 10 * (at - first + 1))]
        if at < first + count - 1:
            cut.append(Run(at + 1, first + count - 1, *times, 10 * (first + count - 1 - at)))
        first += count
    assert rows(whole) == rows(cut)
    assert sum(int(str(row[1])) for row in rows(whole)) == first - 1
    assert len({row[2:4] for row in rows(whole)}) == len(rows(whole))
    if cut:
        merged = [cut[0]._replace(bytes=None), *cut[1:]]
        assert [row[:4] for row in rows(merged)] == [row[:4] for row in rows(cut)]
        assert None in [row[4] for row in rows(merged)]


def test_rows_of_the_acknowledgement_table() -> None:
    """M12: kind by the consumer; claim and detail apart; numbers as pairs."""
    row = {
        "subscription": "s",
        "consumer": "jmsq move",
        "claim": "move-1 to failed",
        "acknowledged_ms": 61_000,
        "messages": 3,
        "first": 2,
        "last": 9,
        "ranges": "[[2,3],[9,9]]",
    }
    change = ended(SPAN, 5, row)
    assert (change.kind, change.claim, change.detail, change.position) == ("moved", "move-1", "failed", 5)
    assert (change.ranges, change.minute_ms, change.quota, change.read_ms) == ("[[2,3],[9,9]]", 60_000, "q", 77)
    skipped = ended(SPAN, 6, {**row, "consumer": "message skip", "claim": "refused/3/8", "ranges": "[[2,9]]"})
    assert (skipped.kind, skipped.claim, skipped.detail, skipped.messages) == ("skipped", None, "refused", 3)
    by_an_earlier_release = {**row, "consumer": "message skip", "claim": "refused/3/8", "messages": 8}
    assert ended(SPAN, 6, by_an_earlier_release).messages == 3
    assert ended(SPAN, 6, {**row, "consumer": "message skip", "claim": "mine"}).messages == 3
    assert " ".join(ALL_KINDS) == "sent finished expired dropped moved aside purged skipped ended gone"


def test_message_is_over_at_the_start_of_its_due_minute() -> None:
    """M12, T6: never before; 0 never expires."""
    assert due_minute(0) is None
    for ms in (1, 59_999, 60_000, 119_999):
        found = due_minute(ms)
        assert found is not None
        assert ms < found <= ms + MINUTE_MS
