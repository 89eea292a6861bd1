"""Delivery counts that forwarded messages bring along in the files that move them (D5, C8)."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.carried import CARRIED, joined, note_in
from spark_jms.core.messages.chunked_ranges import NONE, ChunkedRanges
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.journal import PlannedChange, replayed
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import DeliveryCounts
from spark_jms.core.transactions.transfer import StagedFile, noted

LAST = 30
# message -> how often it was shown, how often perhaps besides, and whether it is claimed alone
counted = st.dictionaries(
    st.integers(1, LAST), st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=12
)


def counts_of(plain: dict[int, tuple[int, int, bool]]) -> DeliveryCounts:
    shown, perhaps, alone = dict[int, ChunkedRanges](), dict[int, ChunkedRanges](), NONE
    for message, (certain, uncertain, by_itself) in plain.items():
        one = Ranges.of((message, message))
        if certain:
            shown[certain] = shown.get(certain, NONE) | one
        if uncertain:
            perhaps[uncertain] = perhaps.get(uncertain, NONE) | one
        if by_itself and (certain or uncertain):
            alone = alone | one
    return DeliveryCounts(shown, perhaps, alone)


def plain_of(counts: DeliveryCounts) -> dict[int, tuple[int, int, bool]]:
    def number(numbered: dict[int, ChunkedRanges], message: int) -> int:
        (found,) = [times for times, ranges in numbered.items() if message in ranges.all()] or [0]
        return found

    found = {
        message: (
            number(dict(counts.shown), message),
            number(dict(counts.perhaps), message),
            message in counts.alone.all(),
        )
        for message in range(1, LAST + 1)
    }
    return {message: one for message, one in found.items() if one[0] or one[1]}


def staged(rows: int) -> StagedFile:
    return StagedFile(f"m0-{rows}.parquet", 0, rows, 10, 0, json.dumps({"numRecords": rows}))


@given(counted, st.sets(st.integers(1, LAST), min_size=1), st.lists(st.integers(1, 8), min_size=1, max_size=6))
def test_counts_arrive_with_their_messages(
    plain: dict[int, tuple[int, int, bool]], moved: set[int], sizes: list[int]
) -> None:
    """D5: whatever messages move, in however many files, and when compaction has made one file of those. Each message gets the next
    number of the other member, here from 101 on."""
    picks, files, left = Ranges.from_numbers(moved), list[StagedFile](), len(moved)
    for size in sizes:
        if left:
            files.append(staged(min(size, left)))
            left -= files[-1].rows
    files += [staged(left)] if left else []
    made = noted(files, counts_of(plain).carried(picks))
    assert [replace(file, stats="") for file in made] == [replace(file, stats="") for file in files]
    arrived, first = [], 101
    for file in made:
        arrived.append(note_in(file.stats).shifted(first - 1))
        first += file.rows
    (merged,) = noted([staged(len(moved))], joined(part.shifted(-100) for part in arrived))
    expected = {
        101 + place: plain[message]
        for place, message in enumerate(sorted(moved))
        if message in plain and any(plain[message][:2])
    }
    for carried in (joined(arrived), note_in(merged.stats).shifted(100)):
        state = RecordSet(floor=100).carry(carried)
        shifted = {m + 100: one for m, one in plain_of(_down(state.deliveries)).items()}
        assert shifted == expected
    assert all((CARRIED in file.stats) == bool(note_in(file.stats)) for file in made)


def _down(counts: DeliveryCounts) -> DeliveryCounts:
    """By 100, as `plain_of` looks at few numbers."""

    def lower(ranges: ChunkedRanges) -> ChunkedRanges:
        return ChunkedRanges.of(Ranges.of(*((lo - 100, hi - 100) for lo, hi in ranges.all())))

    shown, perhaps = ({times: lower(r) for times, r in one.items()} for one in (counts.shown, counts.perhaps))
    return DeliveryCounts(shown, perhaps, lower(counts.alone))


@given(counted, st.sets(st.integers(1, LAST)), st.sets(st.integers(1, LAST)))
def test_counts_are_taken_over_once(
    plain: dict[int, tuple[int, int, bool]], delivered: set[int], done: set[int]
) -> None:
    """D5, C8, C9: by any number of consumers at once, each of whom plans on a state of before; what is delivered afterwards is counted
    on, a message that a live consumer gave back is claimed with others again, and what is done has no count."""
    carried = counts_of(plain).carried(Ranges.of((1, LAST)))
    before = RecordSet(journal=())
    plan = before.carry(carried)
    change = PlannedChange.from_bytes(PlannedChange({"r": plan.journal or ()}).to_bytes())

    def again(state: RecordSet) -> RecordSet:
        return replayed(state, change.journals["r"], set(), ())

    state = again(before)
    expected = {message: one for message, one in plain.items() if any(one[:2])}
    assert plain_of(state.deliveries) == expected
    assert again(state).deliveries is state.deliveries
    picks = Ranges.from_numbers(delivered)
    state = again(replace(state, deliveries=state.deliveries.delivered(picks)))
    for message in delivered:
        certain, uncertain, _ = expected.get(message, (0, 0, False))
        expected[message] = (certain + 1, uncertain, False)
    assert plain_of(state.deliveries) == expected
    state = again(state.skip(Ranges.from_numbers(done)))
    assert plain_of(state.deliveries) == {m: one for m, one in expected.items() if m not in done}


def test_files_of_messages_without_counts_note_nothing() -> None:
    """D5: as every file of a sender; their record sets are not looked at."""
    files = [staged(3), staged(2)]
    assert noted(files, DeliveryCounts().carried(Ranges.of((1, 5)))) == files
    only_last = counts_of({9: (1, 0, False)}).carried(Ranges.of((5, 9)))
    assert [note_in(file.stats).messages for file in noted(files, only_last)] == [EMPTY, Ranges.of((2, 2))]
