"""Medians, spreads and ratios. Pure: values in, values out.

A ratio is taken pair by pair: both sides of one interleaved run, so that a drift of the machine hits both. Its spread
is the smallest and the largest of these pairs, never the quotient of two medians' extremes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

COLD_RUN = 0
"""The run that warms the JVM, the page cache and the workers. It is recorded and named but never counted."""


@dataclass(frozen=True)
class Spread:
    """Median, smallest and largest of `count` values."""

    median: float
    low: float
    high: float
    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or not self.low <= self.median <= self.high:
            raise ValueError(f"not a spread: {self}")


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the two nearest ranks; the same rule for all cells."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("a percentile of nothing")
    if not 0 <= percent <= 100:
        raise ValueError(f"percent is between 0 and 100, not {percent}")
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    # Clamped: interpolation in floating point may leave the interval by one unit in the last place.
    value = ordered[below] + (ordered[above] - ordered[below]) * (place - below)
    return min(max(value, ordered[below]), ordered[above])


def spread(values: Iterable[float]) -> Spread | None:
    """The spread of the values; None without values: a cell without a sample has no figure."""
    found = list(values)
    if not found:
        return None
    return Spread(percentile(found, 50), min(found), max(found), len(found))


def counted(by_run: Mapping[int, float]) -> dict[int, float]:
    """The counted runs: all but the cold one."""
    return {run: value for run, value in sorted(by_run.items()) if run != COLD_RUN}


def pair_ratios(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """ours / theirs for every counted run of both sides."""
    left, right = counted(ours), counted(theirs)
    return [left[run] / right[run] for run in left if right.get(run)]


def pair_differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> list[float]:
    """ours - theirs for every counted run of both sides."""
    left, right = counted(ours), counted(theirs)
    return [left[run] - right[run] for run in left if run in right]


def steady(samples: Sequence[tuple[int, float]], start_ns: int, warm_s: float) -> list[float]:
    """The latencies of messages produced after the warm-up. `samples` are (produced ns, latency ms)."""
    first = start_ns + int(warm_s * 1e9)
    return [latency for produced, latency in samples if produced >= first]
