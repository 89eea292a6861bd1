"""The simulator finds each of thirteen bugs that are planted one at a time (R7-R12)."""

from __future__ import annotations

import re

import pytest

from tests.simulation.planted import PLANTED, Planted
from tests.simulator import Violation, World

SEEDS = range(40)


def first_violation(planted: Planted) -> tuple[int, str]:
    for seed in SEEDS:
        try:
            World(seed).run()
        except Violation as violation:
            return seed, str(violation)
    pytest.fail(f"{planted.name}: not found in {len(SEEDS)} seeds")


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_simulator_finds_a_planted_bug(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7-R12: within 40 seeds, and for the right reason."""
    planted.plant(monkeypatch)
    seed, text = first_violation(planted)
    assert re.search(planted.text, text), f"seed {seed}: {text}"


def test_simulator_passes_the_same_seeds_without_a_bug() -> None:
    """R7-R12: the violations above come from the planted bugs alone."""
    for seed in SEEDS:
        World(seed).run()
