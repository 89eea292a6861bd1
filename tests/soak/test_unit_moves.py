"""10,000 units of order on up to 8 servers, while members, servers and consumers come and go (T10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.unit_moves import Plan, run_unit_moves


@pytest.mark.soak
def test_ten_thousand_units_keep_their_order(tmp_path: Path) -> None:
    """T10, D1, D4, C9: as tests/process/claims/test_unit_moves.py, but larger."""
    run_unit_moves(tmp_path, Plan(units=5_000, rounds=4, servers=8, changes=8, limit_s=1_800), seed=2)
