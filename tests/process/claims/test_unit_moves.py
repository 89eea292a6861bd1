"""Units of order keep their order while members, servers and consumers come and go, in processes of their own (T10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.unit_moves import Plan, run_unit_moves

pytestmark = pytest.mark.timeout(1_800)


def test_units_keep_their_order_while_everything_moves(tmp_path: Path) -> None:
    """T10, D1, D4, C9: 60 units on up to 5 servers; members added and removed, consumers killed with -9, a server away."""
    happened = run_unit_moves(tmp_path, Plan(units=30, rounds=18, servers=5, changes=8, limit_s=240), seed=1)
    assert happened["members"] == 4
    assert happened["consumer"] == happened["server"] == 2
