"""Four writers and three readers at once for two minutes (C4, C5, C9, C13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.log.tables import delta_log
from tests.harness.scenarios.concurrency import GAP_CHECK_MS, run_concurrently


@pytest.mark.soak
def test_four_writers_three_readers_for_two_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, C5, C9, C13: as tests/process/log/test_concurrency.py, but longer and with two purges to empty."""
    monkeypatch.setattr(delta_log, "_GAP_CHECK_INTERVAL_MS", GAP_CHECK_MS)  # this process follows the log too
    run_concurrently(tmp_path, seconds=120, rounds=2)
