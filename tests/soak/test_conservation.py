"""Conservation of messages through a thousand kills (C5, C18, T6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.conservation import Plan, run_conservation


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_messages_are_conserved_through_a_thousand_kills(tmp_path: Path, seed: int) -> None:
    """C5, C8, C9, C10, C12, C18, T6: as tests/process/claims/test_conservation.py, twenty times, with lives of up to two seconds."""
    run_conservation(tmp_path, Plan(kills=50, longest_life_s=2.0), seed)
