"""The bytes of messages, as quotas count them (T1)."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.message_bytes import HEADER_BYTES, MESSAGE_BYTES, MOST_PARTS, bounds_of, bytes_of, parts_in
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables.files import DataFile

SIZES = st.lists(st.integers(0, 10**6), min_size=1, max_size=300)


def parts_of(sizes: list[int]) -> list[int]:
    bounds = bounds_of(len(sizes))
    return [sum(sizes[begin:end]) for begin, end in pairwise(bounds)]


@given(SIZES, st.integers(1, 10**6), st.data())
def test_usage_is_never_understated(sizes: list[int], first: int, data: st.DataObject) -> None:
    """T1: whichever messages are finished; without any there is none, and all count what they have."""
    left = Ranges.from_numbers(data.draw(st.sets(st.integers(first - 2, first + len(sizes) + 2)).map(sorted)))
    true = sum(size for number, size in enumerate(sizes, first) if number in left)
    found = bytes_of(parts_of(sizes), first, len(sizes), left)
    assert true <= found <= sum(sizes)
    assert found == true or len(sizes) > MOST_PARTS
    assert bytes_of(parts_of(sizes), first, len(sizes), Ranges.of((first - 1, first + len(sizes)))) == sum(sizes)
    assert bytes_of(parts_of(sizes), first, len(sizes), Ranges.of((first + len(sizes), first + len(sizes)))) == 0


@given(SIZES, st.data())
def test_messages_that_are_finished_in_order_are_freed_but_for_a_part(sizes: list[int], data: st.DataObject) -> None:
    """T1: so a file of 300 messages of which 299 are finished counts five at most."""
    done = data.draw(st.integers(0, len(sizes) - 1))
    parts = parts_of(sizes)
    found = bytes_of(parts, 1, len(sizes), Ranges.of((done + 1, len(sizes))))
    assert found - sum(sizes[done:]) <= max(parts)
    assert max(bounds_of(300)[n + 1] - bounds_of(300)[n] for n in range(MOST_PARTS)) == 5


@pytest.mark.parametrize(("noted", "found"), [([600, 513], [600, 513]), (None, [2048])])
def test_file_of_an_earlier_release_is_one_part(noted: list[int] | None, found: list[int]) -> None:
    """T1, C18: it counts with the bytes of the file until its last message is finished."""
    statistics = {"numRecords": 2, **({} if noted is None else {MESSAGE_BYTES: noted})}
    assert list(parts_in(statistics, 2048)) == found
    file = DataFile("f", 0, 7, 2, 2048, 0, 0, json.dumps(statistics), sum(found))
    assert file.bytes_of(Ranges.of((8, 20))) == found[-1]
    assert file.bytes_of(Ranges.of((1, 20))) == sum(found)
    assert file.bytes_of(Ranges.of((9, 20))) == 0
    assert HEADER_BYTES == 512
