"""Which daemons and regions a command selects, and in which order (R6)."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.regions.admin.port import (
    DaemonInfo,
    DaemonSelection,
    RegionInfo,
    matches,
    refusal_of_leaving,
    regions_of,
    sort_daemons,
    sort_regions,
)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("all", (0, 1, 2, 3, 4)),
        ("local", (2,)),
        ("3", (3,)),
        ("004", (4,)),
        ("4,0,4", (0, 4)),
        ("1-3", (1, 2, 3)),
        ("2-2", (2,)),
    ],
)
def test_selection_names_daemons(word: str, expected: tuple[int, ...]) -> None:
    """R6: all|local|n[,n]*|n-n."""
    assert DaemonSelection.parse(word).of(5, local_index=2) == expected


@pytest.mark.parametrize(
    "word", ["", "All", "1,", ",1", "1-", "-1", "1-2-3", "1,2-3", "1 2", "x", "3-1", "0-99999999", "٣", "9" * 5000]
)
def test_selection_refuses_other_words(word: str) -> None:
    """R6: without building large ranges."""
    with pytest.raises(ValueError):
        DaemonSelection.parse(word)


@pytest.mark.parametrize("word", ["5", "0,7", "3-5", "123456789"])
def test_selection_refuses_daemons_outside_the_cluster(word: str) -> None:
    """R6: the error names the last daemon."""
    with pytest.raises(ValueError, match="the last is 4"):
        DaemonSelection.parse(word).of(5, 0)


@pytest.mark.parametrize(
    ("expression", "name", "expected"),
    [
        ("A*B*C", "AxxByyC", True),
        ("A*B*C", "ABC", True),
        ("A*B*C", "AC", False),
        ("A*B*C", "ABCx", False),
        ("*", "", True),
        ("**", "anything", True),
        ("", "", True),
        ("", "x", False),
        ("abc", "abc", True),
        ("abc", "ABC", False),
        ("aba*aba", "aba", False),
        ("aba*aba", "abaaba", True),
        ("a.c", "abc", False),
        ("[ab]", "a", False),
        ("*b*", "abc", True),
        ("x?", "xy", False),
    ],
)
def test_expression_matches_names(expression: str, name: str, expected: bool) -> None:
    """R6: the star is the only wildcard."""
    assert matches(expression, name) is expected


@given(st.text(alphabet="ab*", max_size=8), st.text(alphabet="ab", max_size=10))
def test_expression_matches_like_a_regular_expression(expression: str, name: str) -> None:
    """R6: with .* for each star."""
    pattern = ".*".join(re.escape(piece) for piece in expression.split("*"))
    assert matches(expression, name) is (re.fullmatch(pattern, name) is not None)


def test_expression_matches_in_bounded_time() -> None:
    """R6: the time limit of the test would end it."""
    assert not matches("*a" * 1000 + "*b", "a" * 100_000)


def daemon(index: int, started_us: int, used: int) -> DaemonInfo:
    up = started_us > 0
    return DaemonInfo(index, "h", 8000, 1, 100, up=up, started_us=started_us, memory_used_bytes=used)


def region(name: str, primary: int | None, secondary: int | None, size: int, created_us: int) -> RegionInfo:
    return RegionInfo(name, size, "CLOSED", 1, primary, secondary, "", created_us, 0)


DAEMONS = [daemon(0, 50, 9), daemon(1, 0, 0), daemon(2, 70, 3)]
REGIONS = [
    region("b", 1, 2, 8, 10),
    region("a", 2, 0, 4, 30),
    region("lost", None, None, 2, 20),
    region("c", 0, None, 6, 40),
]


@pytest.mark.parametrize(("sort", "expected"), [("name", [0, 1, 2]), ("time", [2, 0, 1]), ("size", [1, 2, 0])])
def test_daemons_are_sorted(sort: str, expected: list[int]) -> None:
    """R6: by number, newest to oldest, smallest to largest."""
    assert [each.index for each in sort_daemons(DAEMONS[::-1], sort)] == expected


@pytest.mark.parametrize(
    ("sort", "expected"),
    [("name", ["c", "b", "a", "lost"]), ("time", ["c", "a", "lost", "b"]), ("size", ["lost", "a", "c", "b"])],
)
def test_regions_are_sorted(sort: str, expected: list[str]) -> None:
    """R6: by daemon number and then by name, newest to oldest, smallest to largest."""
    assert [each.name for each in sort_regions(REGIONS, sort)] == expected


@pytest.mark.parametrize(
    ("word", "expression", "expected"),
    [
        ("all", "*", ["b", "a", "lost", "c"]),
        ("0", "*", ["a", "c"]),
        ("local", "*", ["b", "a"]),
        ("0-2", "*", ["b", "a", "c"]),
        ("all", "*o*", ["lost"]),
    ],
)
def test_regions_are_selected_by_daemon(word: str, expression: str, expected: list[str]) -> None:
    """R6: those with a copy there; `all` includes lost regions."""
    selection = DaemonSelection.parse(word)
    found = regions_of(REGIONS, selection, selection.of(3, local_index=2), expression)
    assert [each.name for each in found] == expected


def region(name: str, holders: tuple[int, int], opener: str = "", size: int = 4) -> RegionInfo:
    return RegionInfo(name, size, "OPEN" if opener else "CLOSED", 1, *holders, opener, 0, 0)


def daemon(index: int, free: int = 10, *, up: bool = True) -> DaemonInfo:
    return DaemonInfo(index, "host", 1, 1, 100, up, up, memory_used_bytes=100 - free)


@pytest.mark.parametrize(
    ("regions", "daemons", "expected"),
    [
        ([], [daemon(0), daemon(1)], ""),
        ([region("a", (0, 1))], [daemon(0), daemon(1)], "no daemon would be left, and 1 region(s) need two"),
        ([region("a", (0, 1))], [daemon(0), daemon(1), daemon(2)], "1 daemon would be left, and 1 region(s) need two"),
        ([region("a", (0, 1))], [daemon(0), daemon(1), daemon(2), daemon(3)], ""),
        ([region("a", (0, 2))], [daemon(0), daemon(1), daemon(2), daemon(3)], ""),
        (
            [region("a", (0, 2))],
            [daemon(0), daemon(1), daemon(2), daemon(3, free=3)],
            "not enough memory on the other daemons to resilver 1 region(s)",
        ),
        ([region("a", (2, 3), "orders")], [daemon(0), daemon(1), daemon(2), daemon(3)], ""),
        (
            [region("a", (0, 3), "orders")],
            [daemon(0), daemon(1), daemon(2), daemon(3)],
            "region a is open, by orders",
        ),
        ([region("a", (0, 3), "service webhdfs")], [daemon(0), daemon(1), daemon(2), daemon(3)], ""),
        ([region("a", (0, 3))], [daemon(0, up=False), daemon(1), daemon(2), daemon(3, free=0)], ""),
    ],
)
def test_refusal_of_a_safe_stop_is_foreseen(
    regions: list[RegionInfo], daemons: list[DaemonInfo], expected: str
) -> None:
    """R4: for the daemons 0 and 1, by what a look at the cluster shows."""
    assert refusal_of_leaving(regions, daemons, (0, 1)) == expected
