"""The few figures that the README has and docs/BENCHMARKS.md begins with, taken from the tables there."""

from __future__ import annotations

import re

BEGIN, END = "<!-- figures: from docs/BENCHMARKS.md, by `make bench ARGS=--write-docs` -->", "<!-- end of figures -->"
_HEAD = """\
| Measured on two cores | spark-jms | Spark + Kafka | Delta's own streaming, tuned | Artemis |
|---|---|---|---|---|"""
_ROWS = (  # what, its section of BENCHMARKS, and the cells of the columns
    ("sent from Spark, messages/s", "sink (messages/s)", "jmsq", "spark-kafka", "delta-tuned", ""),
    ("received in Spark, messages/s", "source (messages/s)", "jmsq all columns", "spark-kafka", "delta-tuned", ""),
    ("latency in Spark, p50, ms", "latency p50 (ms)", "jmsq", "spark-kafka", "", ""),
    ("processor time, ms a message", "CPU per message (ms)", "jmsq", "spark-kafka", "", ""),
    ("latency without Spark, p50, ms", "client latency p50 (ms)", "jmsq", "", "", "Artemis"),
    ("sent without Spark, one thread, messages/s", "client, send (messages/s)", "one thread", "", "", "Artemis"),
)
_SECTION = re.compile(r"^## ([^\n]*)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"^\| ([^|]+?) \| ([\d,.]+) \|", re.MULTILINE)


def figures(benchmarks: str) -> str:
    """The table, from the text of BENCHMARKS. Raises KeyError when a section or a cell is missing."""
    sections = {title: dict(_CELL.findall(body)) for title, body in _SECTION.findall(benchmarks)}
    lines = [_HEAD]
    for what, section, *cells in _ROWS:
        lines.append(f"| {what} | {' | '.join(sections[section][cell] if cell else '–' for cell in cells)} |")
    return "\n".join(lines)


def updated(page: str, benchmarks: str) -> str:
    """The page with the figures of BENCHMARKS between its marks, or behind its title."""
    if BEGIN not in page:
        title, _, rest = page.partition("\n")
        page = f"{title}\n\n{BEGIN}\n{END}\n{rest}"
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{figures(benchmarks)}\n{END}{rest.partition(END)[2]}"
