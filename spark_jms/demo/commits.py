"""The commits that added rows to a Delta table, read from its log as a program would that knows no spark-jms."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.parquet as pq


@dataclass(frozen=True)
class RowCommit:
    """A commit with at least one row, and the files that it added."""

    commit_ms: int
    rows: int
    files: tuple[Path, ...]


def row_commits(table: Path) -> list[RowCommit]:
    """In the order of the log. What only rearranges rows, as compaction does, adds none."""
    found = []
    for entry in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in entry.read_text().splitlines() if line]
        added = [action["add"] for action in actions if "add" in action and action["add"].get("dataChange", True)]
        commit_ms = next((a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a), 0)
        rows = sum(_rows(table, add) for add in added)
        if rows:
            found.append(RowCommit(commit_ms, rows, tuple(table / unquote(add["path"]) for add in added)))
    return found


def _rows(table: Path, add: Mapping[str, Any]) -> int:
    stats = json.loads(add.get("stats") or "{}")
    if "numRecords" in stats:
        return int(stats["numRecords"])
    return int(pq.read_metadata(table / unquote(add["path"])).num_rows)
