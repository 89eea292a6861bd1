"""Line charts as SVG, drawn on the server: the page needs no script. Pure.

Features: M8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from spark_jms.console.history import Series

WIDTH, HEIGHT, LEFT, BOTTOM = 420, 110, 56, 18
COLOURS = ("#2563eb", "#d97706")


def chart(series: Sequence[Series], span_s: float) -> str:
    """The last `span_s` seconds. The vertical axis starts at 0."""
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


def _line(one: Series, colour: str, span_s: float, top: float) -> str:
    shown = [point for point in one.points if point.seconds >= -span_s]
    places = " ".join(
        f"{LEFT + (point.seconds + span_s) / span_s * (WIDTH - LEFT):.1f},"
        f"{(HEIGHT - BOTTOM) * (1 - point.value / top):.1f}"
        for point in shown
    )
    return f'<polyline points="{places}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
