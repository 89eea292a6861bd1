"""Ranges against Python sets (C5)."""

from __future__ import annotations

import itertools
import json
import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jms.core.messages import ranges
from spark_jms.core.messages.ranges import EMPTY, Ranges, concatenated, union

pairs = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), max_size=12)


@pytest.fixture(params=[0, ranges.FEW], ids=["kernels", "loops"])
def few(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets as small as those of a property test take the way of many ranges, and that of few."""
    monkeypatch.setattr(ranges, "FEW", request.param)
    monkeypatch.setattr(ranges, "FEW", request.param)


each_way = pytest.mark.usefixtures("few")
same_for_all = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # the fixture changes one constant


def members(r: Ranges) -> set[int]:
    return {n for lo, hi in r for n in range(lo, hi + 1)}


def as_set(given_pairs: list[tuple[int, int]]) -> set[int]:
    return {n for lo, hi in given_pairs for n in range(lo, hi + 1)}


def canonical(r: Ranges) -> bool:
    bounds = list(r)
    return all(lo <= hi for lo, hi in bounds) and all(a[1] + 1 < b[0] for a, b in itertools.pairwise(bounds))


@each_way
@same_for_all
@given(pairs, pairs)
def test_operations_match_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    """C5: union, difference and intersection are those of sets, and results are in normal form."""
    x, y = Ranges.of(*a), Ranges.of(*b)
    for result, expected in (
        (x | y, as_set(a) | as_set(b)),
        (x - y, as_set(a) - as_set(b)),
        (x & y, as_set(a) & as_set(b)),
    ):
        assert members(result) == expected
        assert canonical(result)
        assert result.count == len(expected)
        assert bool(result) == bool(expected)
    assert members(union([x, y, x])) == as_set(a) | as_set(b)
    for middle in (0, 30, 60):
        parts = [x.between(1, middle), x.between(middle + 1, 60)]
        assert concatenated(parts) == x
    assert pickle.loads(pickle.dumps(x)) == x


@each_way
@same_for_all
@given(pairs, st.integers(-1, 70), st.integers(1, 60), st.integers(1, 60))
def test_take_between_and_numbers_match_sets(a: list[tuple[int, int]], n: int, low: int, high: int) -> None:
    """C5: `take` returns the lowest numbers, `between` a window, `numbers` all of them in order."""
    x = Ranges.of(*a)
    ordered = sorted(as_set(a))
    assert members(x.take(n)) == set(ordered[: max(n, 0)])
    assert x.numbers().tolist() == ordered
    assert members(x.between(low, high)) == {k for k in ordered if low <= k <= high}
    assert Ranges.from_numbers(x.numbers()) == x
    assert all((k in x) == (k in set(ordered)) for k in range(62))
    assert len(x.take_ranges(2)) <= 2


@each_way
@same_for_all
@given(pairs)
def test_ranges_round_trip_as_json(a: list[tuple[int, int]]) -> None:
    """C5: ranges read back from an offset are equal."""
    x = Ranges.of(*a)
    assert Ranges.from_json(json.loads(json.dumps(x.to_json()))) == x


@pytest.mark.parametrize("step", [2, 3, 2**33])
def test_many_ranges_are_stored_compactly(step: int) -> None:
    """C5: a scattered pick takes far less than 16 bytes a range, even if its numbers need 64 bits."""
    x = Ranges.from_numbers(range(5, 5 + step * 5000, step))
    text = x.to_json()
    assert isinstance(text, str)
    assert len(text) < 5000 * 8
    assert Ranges.from_json(text) == x


@pytest.mark.parametrize("bad", [[[1]], [[1, "2"]], "no base64!", "aGVsbG8=", 7, None, [[1, 2, 3]]])
def test_damaged_ranges_are_refused(bad: object) -> None:
    """C5: a damaged text raises ValueError and never makes a wrong set."""
    with pytest.raises(ValueError):
        Ranges.from_json(bad)


def test_empty_ranges() -> None:
    """C5: operations accept the empty set."""
    assert not EMPTY
    assert EMPTY.count == 0
    assert EMPTY - Ranges.of((1, 2)) == EMPTY
    assert EMPTY.take(3) == EMPTY
    assert Ranges.of((5, 4)) == EMPTY


def test_text_of_ranges_is_for_people() -> None:
    """C14, C16: whole where it is data, cut where it is part of a sentence."""
    many = Ranges.of(*((n, n + n % 2) for n in range(1, 100, 3)))
    assert str(Ranges.of((1, 3), (7, 7))) == "1-3, 7"
    assert repr(Ranges.of((1, 3), (7, 7))) == "Ranges(1-3, 7)"
    assert str(many).endswith(", …")
    assert many.text().count(",") == len(many) - 1
    assert str(Ranges.of()) == ""
