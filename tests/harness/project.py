"""Where things lie."""

from __future__ import annotations

from pathlib import Path

PROJECT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"  # that tests start by their paths
