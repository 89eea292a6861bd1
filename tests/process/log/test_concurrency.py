"""Four writers and three readers at once for half a minute (C4, C5, C9, C13); tests/soak has the two-minute run."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.log.tables import delta_log
from tests.harness.scenarios.concurrency import GAP_CHECK_MS, run_concurrently

pytestmark = pytest.mark.spark  # applications of its own


@pytest.mark.timeout(1_800)
def test_four_writers_three_readers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, C5, C9, C13: dense sequences, exactly once, in order, bounded files; a purge to empty and a new member."""
    monkeypatch.setattr(delta_log, "_GAP_CHECK_INTERVAL_MS", GAP_CHECK_MS)  # this process follows the log too
    run_concurrently(tmp_path, seconds=24, rounds=1)
