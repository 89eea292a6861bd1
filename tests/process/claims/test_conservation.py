"""Nothing is lost and nothing is doubled, whatever is killed: every number of every table has one end (C5, C18, T6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.conservation import Plan, run_conservation


@pytest.mark.timeout(900)
def test_messages_are_conserved_through_fifty_kills(tmp_path: Path) -> None:
    """C5, C8, C9, C10, C12, C18, T6: producers, consumers, movers, purges and housekeeping, each killed with -9 at any moment.
    For each destination, subscription and member: sent + transferred in = present + acknowledged + expired + refused +
    skipped + removed + transferred out, of which some are in the error destination."""
    happened = run_conservation(tmp_path, Plan(kills=50, longest_life_s=0.3), seed=1)
    assert min(happened[event] for event in ("sent", "acknowledged", "transferred")) > 0, happened


@pytest.mark.timeout(900)
def test_messages_are_conserved_with_twelve_competing_consumers(tmp_path: Path) -> None:
    """C5, C8, C9, C18: of one queue, killed and stopped at any moment; some sleep longer than their sessions live, and wake."""
    plan = Plan(kills=40, longest_life_s=0.6, consumers=12, stops=4)
    happened = run_conservation(tmp_path, plan, seed=2)
    assert min(happened[event] for event in ("sent", "acknowledged", "transferred")) > 0, happened
