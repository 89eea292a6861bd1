"""The past of a domain as the page draws it: backlog and rates of each destination, bounded, and as SVG. Pure.

The server draws the charts: the page needs no script.

Features: M8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from spark_jms.admin.domain_sample import DomainSample
from spark_jms.admin.statistics import DestinationStatistics

SPANS_S = (30, 60, 300, 1800)
MAX_SAMPLES = 900  # half an hour at one every two seconds
WIDTH, HEIGHT, LEFT, BOTTOM = 420, 110, 56, 18
COLOURS = ("#2563eb", "#d97706")


@dataclass(frozen=True)
class Point:
    seconds: float  # before the newest sample: negative, or 0
    value: float


@dataclass(frozen=True)
class Series:
    name: str
    points: tuple[Point, ...]


class History:
    """Not thread-safe: the server adds from its own loop."""

    def __init__(self) -> None:
        self._samples: deque[DomainSample] = deque(maxlen=MAX_SAMPLES)

    def add(self, sample: DomainSample) -> None:
        self._samples.append(sample)

    @property
    def newest(self) -> DomainSample | None:
        return self._samples[-1] if self._samples else None

    @property
    def span_s(self) -> int:
        """What a chart should cover: the shortest of SPANS_S that holds all samples."""
        age_s = (self._samples[-1].time_ms - self._samples[0].time_ms) / 1000 if self._samples else 0
        return next((span_s for span_s in SPANS_S if span_s >= age_s), SPANS_S[-1])

    def backlog(self, destination: str) -> Series:
        return Series("backlog", self._points([(s.time_ms, one.backlog) for s, one in self._of(destination)]))

    def rates(self, destination: str) -> tuple[Series, Series]:
        """Messages sent and finished a second, between neighbouring samples."""
        seen = self._of(destination)
        sent = [(s.time_ms, one.sent) for s, one in seen]
        done = [(s.time_ms, _finished(one)) for s, one in seen]
        return Series("sent/s", self._points(_slopes(sent))), Series("done/s", self._points(_slopes(done)))

    def _of(self, destination: str) -> list[tuple[DomainSample, DestinationStatistics]]:
        return [(s, one) for s in self._samples for one in s.destinations if one.destination == destination]

    def _points(self, values: Sequence[tuple[int, float]]) -> tuple[Point, ...]:
        now_ms = self._samples[-1].time_ms if self._samples else 0
        return tuple(Point((time_ms - now_ms) / 1000, value) for time_ms, value in values)


def chart(series: Sequence[Series], span_s: float) -> str:
    """A line chart of the last `span_s` seconds. The vertical axis starts at 0."""
    top = max([1.0, *(point.value for one in series for point in one.points)])
    lines = "".join(_line(one, colour, span_s, top) for one, colour in zip(series, COLOURS, strict=False))
    names = "".join(
        f'<text x="{LEFT + 4 + 90 * i}" y="12" fill="{colour}">{escape(one.name)}</text>'
        for i, (one, colour) in enumerate(zip(series, COLOURS, strict=False))
    )
    label = escape(" and ".join(one.name for one in series))
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f'<path d="M{LEFT} 0V{HEIGHT - BOTTOM}H{WIDTH}" class="axis"/>'
        f'<text x="{LEFT - 4}" y="12" text-anchor="end">{top:,.0f}</text>'
        f'<text x="{LEFT - 4}" y="{HEIGHT - BOTTOM}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}">−{span_s:,.0f} s</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 4}" text-anchor="end">now</text>{names}{lines}</svg>'
    )


def _finished(one: DestinationStatistics) -> int:
    return sum(row.last_sequence - row.backlog for row in one.subscriptions)


def _slopes(values: Sequence[tuple[int, int]]) -> list[tuple[int, float]]:
    """A count that falls (a dropped subscription, a destination made again) is a rate of 0."""
    pairs = pairwise(values)
    return [(t1, max(v1 - v0, 0) * 1000 / (t1 - t0)) for (t0, v0), (t1, v1) in pairs if t1 > t0]


def _line(one: Series, colour: str, span_s: float, top: float) -> str:
    shown = [point for point in one.points if point.seconds >= -span_s]
    places = " ".join(
        f"{LEFT + (point.seconds + span_s) / span_s * (WIDTH - LEFT):.1f},"
        f"{(HEIGHT - BOTTOM) * (1 - point.value / top):.1f}"
        for point in shown
    )
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
