"""The messages that arrived, read from the output tables, and the queue's own tables, read by delta-rs and pyarrow."""

from __future__ import annotations

import functools
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable

from spark_jms.core.messages.ranges import Ranges


@dataclass(frozen=True)
class Row:
    n: int
    unit: str | None
    member: int
    sequence: int
    redelivered: bool
    deliveries: int
    version: int  # the output table's version: one for each batch


def rows_of(table: Path) -> list[Row]:
    """The rows of an output table in the order of its commits; none before the table exists. Cheap enough to poll."""
    return [row for commit in _commits(table) for row in _rows_of(commit)]


def count_of(table: Path) -> int:
    """The number of rows so far, from the log alone."""
    return sum(rows for commit in _commits(table) for _, rows in _added_by(commit))


def _commits(table: Path) -> list[Path]:
    return sorted((table / "_delta_log").glob("*.json"))


@functools.cache  # a commit never changes
def _added_by(commit: Path) -> tuple[tuple[str, int], ...]:
    """(file, number of rows) for each added file."""
    actions = [json.loads(line) for line in commit.read_text().splitlines()]
    assert not any("remove" in action for action in actions), f"{commit}: the output is append-only"
    added = [action["add"] for action in actions if "add" in action]
    return tuple(sorted((add["path"], json.loads(add["stats"])["numRecords"]) for add in added))


@functools.cache
def _rows_of(commit: Path) -> tuple[Row, ...]:
    tables = [pq.read_table(commit.parents[1] / path).to_pylist() for path, _ in _added_by(commit)]
    return tuple(Row(**row, version=int(commit.stem)) for rows in tables for row in rows)


def last_sequences(root: Path, queue: str, members: int) -> dict[int, int]:
    table = DeltaTable(root / queue)
    return {m: table.transaction_version(f"seq/{m}") or 0 for m in range(members)}


def missing_and_doubled(rows: Iterable[Row], sent: int) -> tuple[list[int], list[int]]:
    times = Counter(row.n for row in rows)
    return [n for n in range(sent) if n not in times], sorted(n for n, count in times.items() if count > 1)


def check_exactly_once(rows: Sequence[Row], sent: int) -> None:
    missing, doubled = missing_and_doubled(rows, sent)
    assert not missing, f"{len(missing)} of {sent} messages are lost: {missing[:20]}"
    assert not doubled, f"{len(doubled)} messages arrived twice: {[r for r in rows if r.n in doubled[:5]]}"
    assert len(rows) == sent, f"{len(rows)} rows for {sent} messages"
    flagged = [row for row in rows if row.redelivered or row.deliveries != 1]
    assert not flagged, f"{len(flagged)} messages are flagged as redelivered: {flagged[:5]}"


def check_dense(rows: Iterable[Row], last: dict[int, int]) -> None:
    """Every member has all sequences from 1, and each sequence belongs to one message."""
    numbers: dict[int, dict[int, int]] = defaultdict(dict)
    for row in rows:
        assert numbers[row.member].setdefault(row.sequence, row.n) == row.n, f"a sequence was used twice: {row}"
    for member, end in last.items():
        assert sorted(numbers[member]) == list(range(1, end + 1)), f"member {member}: sequences are not 1 to {end}"


def check_order(rows: Sequence[Row]) -> None:
    """One consumer's rows: sequences rise within a member, numbers rise within a unit of order of the one producer."""
    check_unit_order(rows)
    last: dict[int, int] = {}
    for row in rows:
        assert row.sequence > last.get(row.member, 0), (
            f"out of order at {row}: the member had already reached {last[row.member]}"
        )
        last[row.member] = row.sequence


def check_unit_order(rows: Sequence[Row]) -> None:
    """A unit of order keeps its order through revocation and redelivery: a message in doubt holds back its successors."""
    last: dict[str, int] = {}
    for row in rows:
        if row.unit is not None:
            assert row.n > last.get(row.unit, -1), (
                f"out of order at {row}: the unit had already reached {last[row.unit]}"
            )
            last[row.unit] = row.n


def acknowledged_count(root: Path, queue: str) -> int:
    table = DeltaTable(root / "_jmsq" / "acknowledgements" / queue).to_pyarrow_table(columns=["messages"])
    return sum(table.column("messages").to_pylist())


def check_acknowledged(root: Path, queue: str, last: dict[int, int]) -> None:
    """The acknowledgement table lists every message exactly once (C14)."""
    rows = DeltaTable(root / "_jmsq" / "acknowledgements" / queue).to_pyarrow_table(
        columns=["member", "messages", "ranges"]
    )
    for member, end in last.items():
        mine = [row for row in rows.to_pylist() if row["member"] == member]
        done = [Ranges.from_json(json.loads(row["ranges"])) for row in mine]
        total = sum(row["messages"] for row in mine)
        union: set[int] = set()
        for ranges in done:
            union.update(int(n) for n in ranges.numbers())
        assert total == end == len(union), (
            f"member {member}: {total} acknowledgements of {len(union)} messages, not {end}"
        )
