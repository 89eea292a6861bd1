"""Results as tables: for the terminal (rich) and for docs/BENCHMARKS.md. Pure: results in, text out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from benchmarks.peers.base import LINGER_MS, PACE_MS
from benchmarks.results import Results
from benchmarks.stats import COLD_RUN, Spread

HEADINGS = ("cell", "median", "min–max", "cold run", "ratio (pair by pair)", "against", "target", "", "noise")
_MACHINE, _METHOD, _TARGETS = "The machine", "How it is measured", "Targets"
_TARGETS_HEAD = ("| | ratio | measured | target | |", "|---|---|---|---|---|")
QUICK = "A quick run: too small to be warm. It shows that everything works and is NOT honest for publishing."
METHOD = """\
All cells of a table were measured in one run of `make bench`, in turn (A B C A B C …), after one cold cycle that is
shown and not counted. Spark runs as `{master}`, one session (one JVM) for all peers; messages are 1 KiB of random
bytes; between cells dirty pages are written to disk and garbage is collected. Throughput is messages over the wall
time of the whole query, its start included. **sink**: Parquet file stream of {rows:,} messages → destination,
AvailableNow, 4 micro-batches. **source**: the same data → `noop`, AvailableNow; each query is proved to have moved
every row; the same with {large_rows:,} messages, and beside a generator of ready Arrow batches, which is what a Python source of Spark
can reach. **sorted**: {rows:,} messages of 100 bytes with random priorities in one queue,
received in batches of 100,000 by a queue's destination keys, beside FIFO. **latency**: {rate} messages a second for
{latency_s:g} s after {warm_s:g} s of warm-up, processingTime 0 (batched: {pace_ms} ms, and senders that
wait {linger_ms} ms for messages which they then send together, into one member or partition),
checkpoint on local disk; from the time a message was due at the producer to the time `foreachBatch` has it.
**CPU per message**: the same windows after their warm-up; processor time of all processes of the run (producer, Spark's JVM,
Python's sources and workers, broker, daemons, housekeeping) over the messages sent. A broker and daemons that stand by for
another peer are left out; a table has the time by process, another one the sum without the compilers (JIT) of the Java processes.
All queries write their checkpoint files by Spark's default; those named *fewer forks* as docs/SPARK.md, checkpoints, says.
**commit** is one `send` of the plain client; **planning** is `latestOffset` + `partitions`; their destinations are
sampled in turn, {rounds} rounds. **quotas**: single sends of 1 KiB by one thread for 5 s, by the CPU time of its process, and ten
batches of 20,000 small messages, to a destination with a quota and to one without.
**store rank**: acknowledged commits a second of one process with 1, 8 and 64 threads,
each on a record set of its own (three objects, 300 bytes), on each kind of store; the databases with fsync, the
replicated store with three daemons on this machine, the file store also on a disk made slower by a wait after each
forced write; `≤ 1 ×`: not faster than the one above in the rank. **client**: the plain client in one
process with housekeeping, each cell for 5 s or 100,000 messages, beside appending 200 bytes with `fdatasync`, beside the dozen
system calls of one write of the file store and nothing else, and beside one Artemis broker with forced writes and a STOMP client
in Python; latency to another process, which acknowledges each.
**competing consumers**: a backlog of messages of 100 bytes in a queue with one member, received and acknowledged for 5 s,
after 3 s of warm-up, by consumers as threads of one process or as processes with one each, beside Artemis with as many clients; the
goals are multiples of one consumer.
**send modes**: one thread, or 100 coroutines, send non-persistent messages for 5 s, until the last one is in the table.
**pipeline**: a backlog of 5,000 messages of 100 bytes, acknowledged ten at a time, by how many messages a consumer claims at once.
**preference**: 100 messages a second, received by one consumer, by `messagingPerformancePreference`.
**compression**: 5,000 messages of 10 KB of text like JSON, in one send, for each kind that a destination's files may have.
**growth**: {commits:,} single sends with housekeeping in the sender's process, beside a consumer in another process that takes 20
messages a second; the windows of the last third over those of the third before. **selector**: {rows:,} messages in sends of
10,000, of which one in a thousand matches; counting reads the property's column of the whole Delta table with Arrow.
**blocked backlog**: one process sends a message and receives it, or waits for none, beside messages that are delayed, or behind units
of order that another consumer of the process has; by its processor time, against 1,000 of the same kind.
**topic**: sends of 100 messages of 1,000 random bytes. **services**: 10,000,000 messages of one queue that are over within one
minute, and 100 of another in the same one, from the batch in which their timers fire; the change feed read beside a producer that
sends 200,000 messages a second for 20 s; processor time of the queries of usage and expiration for 90 s without a message. A ratio is
taken of the two cells of the same cycle; its spread is the smallest and largest of these pairs. *Noise* is the worst of
the counted runs: load average before a cell / share of all cores that other processes used during it. The peers:
Spark's Kafka connector against one KRaft broker on loopback (4 partitions, acks=all, linger 5 ms, batches of 128 KiB,
no keys), and Delta's own streaming, with its defaults and tuned (`snapshotPartitions=2`, no statistics)."""

FIXED = {"master": "local[2]", "pace_ms": PACE_MS, "linger_ms": LINGER_MS}


@dataclass(frozen=True)
class ReportRow:
    """One line of a table, as text."""

    cell: str
    median: str
    low_high: str
    cold: str
    ratio: str
    against: str
    target: str
    verdict: str
    noise: str

    def fields(self) -> tuple[str, ...]:
        return (
            *(self.cell, self.median, self.low_high, self.cold, self.ratio),
            *(self.against, self.target, self.verdict, self.noise),
        )


def number(value: float) -> str:
    """Three significant figures: 123,456 · 123 · 12.3 · 1.23."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def low_high(found: Spread) -> str:
    return f"{number(found.low)}–{number(found.high)}"


def rows(results: Results, table: str) -> list[ReportRow]:
    """One row per cell; an absent cell shows its reason in place of figures."""
    return [_row(results, table, cell) for cell in results.cells(table)]


def _row(results: Results, table: str, cell: str) -> ReportRow:
    figure, comparison = results.figure(table, cell), results.comparison(table, cell)
    cold = results.by_run(table, cell).get(COLD_RUN)
    ratio_text = against = target = verdict = ""
    if comparison is not None:
        ratio = results.ratio(comparison)
        ratio_text = comparison.text(ratio)
        against, target = comparison.against, comparison.target
        said = comparison.verdict(ratio)
        verdict = "" if said == "no target" else said
    absence, noise, note = results.absence(table, cell), results.noise(table, cell), results.note(table, cell)
    name = f"{cell} ({note})" if note else cell
    if figure is None:
        median, spread_text = absence or "no counted run", ""
    else:
        median, spread_text = number(figure.median), low_high(figure)
        if absence is not None:
            median += f" ({figure.count} runs; then {absence})"
    return ReportRow(
        cell=name,
        median=median,
        low_high=spread_text,
        cold=number(cold) if cold is not None else "",
        ratio=ratio_text,
        against=against,
        target=target,
        verdict=verdict,
        noise=f"{noise.load_before:.1f} / {noise.others_cpu_share:.0%}" if noise else "",
    )


def terminal_tables(results: Results) -> list[Table]:
    """One rich table per table of results."""
    styles = {"met": "green", "missed": "red", "not measured": "yellow"}
    tables = []
    for name in results.tables():
        table = Table(title=_title(results, name), title_justify="left", show_lines=False)
        for heading in HEADINGS:
            table.add_column(heading, overflow="fold")
        for row in rows(results, name):
            style = styles.get(row.verdict)
            fields = [escape(text) for text in row.fields()]
            if style:
                fields[7] = f"[{style}]{fields[7]}[/{style}]"
            table.add_row(*fields)
        tables.append(table)
    return tables


def markdown(results: Results, date: str) -> str:
    """All of docs/BENCHMARKS.md."""
    lines = ["# Benchmarks", "", f"Written by `make bench` (`benchmarks/run.py --write-docs`), {date}.", ""]
    if results.options.get("quick"):
        lines += [f"**{QUICK}**", ""]
    lines += [f"## {_MACHINE}", "", *(f"- {name}: {value}" for name, value in results.machine.items()), ""]
    lines += [f"## {_METHOD}", "", METHOD.format(**{**FIXED, **results.options}), ""]
    lines += [f"## {_TARGETS}", "", *_targets(results), ""]
    for name in results.tables():
        lines += [f"## {_title(results, name)}", "", *_markdown_table(rows(results, name)), ""]
    return "\n".join(lines).rstrip() + "\n"


def updated(document: str, newer: str) -> str:
    """A document with the tables of a newer run of some parts: their sections and their rows of the targets replace the former
    ones, new ones come at the end, and each says when it was measured. Everything else stays."""
    sections, new = _sections(document), _sections(newer)
    date = newer.split("`), ", 1)[1].split(".", 1)[0]
    for title, body in new.items():
        if title == _TARGETS:
            rows = _rows_of_targets(sections.get(title, "")) | _rows_of_targets(body)
            sections[title] = "\n".join((*_TARGETS_HEAD, *rows.values()))
        elif title == _METHOD:
            sections[title] = body
        elif title not in ("", _MACHINE):
            sections[title] = f"Measured {date}.\n\n{body}"
    head = sections.pop("")
    return "\n\n".join((head, *(f"## {title}\n\n{body}" for title, body in sections.items()))) + "\n"


def _sections(document: str) -> dict[str, str]:
    """Title -> its text, in order; "" is the text before the first title."""
    head, *rest = document.split("\n## ")
    parts = (section.partition("\n") for section in rest)
    return {"": head.strip(), **{title: body.strip() for title, _, body in parts}}


def _rows_of_targets(table: str) -> dict[tuple[str, ...], str]:
    """(table, ratio) -> its row."""
    rows = [line for line in table.splitlines() if line.startswith("| ") and line not in _TARGETS_HEAD]
    return {tuple(row.split(" | ")[:2]): row for row in rows}


def targets(results: Results) -> list[tuple[str, str, str, str, str]]:
    """(table, cell, ratio, target, verdict) of every comparison with a target."""
    found: list[tuple[str, str, str, str, str]] = []
    for comparison in results.comparisons:
        if comparison.bound is not None:
            ratio = results.ratio(comparison)
            text, verdict = comparison.text(ratio), comparison.verdict(ratio)
            found.append((comparison.table, comparison.name, text, comparison.target, verdict))
    return found


def _targets(results: Results) -> list[str]:
    return [*_TARGETS_HEAD, *(f"| {' | '.join(_cell(text) for text in target)} |" for target in targets(results))]


def _title(results: Results, table: str) -> str:
    unit = results.unit(table)
    return f"{table} ({unit})" if unit else table


def _markdown_table(found: Sequence[ReportRow]) -> list[str]:
    lines = [f"| {' | '.join(HEADINGS)} |", "|---|---:|---:|---:|---:|---|---|---|---|"]
    lines += [f"| {' | '.join(_cell(text) for text in row.fields())} |" for row in found]
    return lines


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
