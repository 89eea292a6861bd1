"""The names of the crash points, and the directory in which a test arms one; crash_plugin/sitecustomize.py strikes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PLUGIN = Path(__file__).parent / "crash_plugin"
POINTS = tuple(
    f"{when}-{what}"
    for what in ("file-write", "send-commit", "claim-write", "record-look", "purge", "compaction")
    for when in ("before", "after")
)
# Five more: rows of the acknowledgement table, a task about to read, planning, Delta checkpoints.
MORE_POINTS = ("before-outbox", "after-outbox", "before-task-read", "after-plan", "before-checkpoint")
SERVICE_POINTS = tuple(f"{when}-{what}" for what in ("history", "due-sink") for when in ("before", "after"))
AT_QUERY_START = ("before-record-look", "after-record-look")
AT_COMPACTION = ("before-compaction", "after-compaction")


@dataclass(frozen=True)
class Plan:
    point: str
    target: str  # worker | driver | pause
    nth: int = 1
    orphan: str = "continue"  # die | continue | linger


class CrashDirectory:
    """Shared by the test and the application's processes: the plan, the count of hits, and the record of the strike."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)

    def arm(self, plan: Plan) -> None:
        self.disarm()
        staged = self.path / "plan.writing"
        staged.write_text(json.dumps(asdict(plan)))
        os.rename(staged, self.path / "plan.json")

    def disarm(self) -> None:
        """The strike that the plan has had is forgotten with it."""
        for name in ("plan.json", "fired.json", "hits"):
            (self.path / name).unlink(missing_ok=True)

    def fired(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / "fired.json").read_text())
        except FileNotFoundError:
            return None

    def hits(self) -> int:
        try:
            return (self.path / "hits").stat().st_size
        except FileNotFoundError:
            return 0
