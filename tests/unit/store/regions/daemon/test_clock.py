"""The clock of a daemon's leases (R10)."""

from __future__ import annotations

import sys
import time

import pytest

from spark_jms.store.regions.daemon.daemon import now_ms


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no clock that counts while they are suspended")
def test_lease_clock_counts_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """R10: CLOCK_MONOTONIC stands meanwhile, and a primary that wakes would trust its lease."""
    seconds = {time.CLOCK_BOOTTIME: 3_600.0, time.CLOCK_MONOTONIC: 10.0}
    monkeypatch.setattr(time, "clock_gettime", seconds.__getitem__)
    assert now_ms() == 3_600_000.0
