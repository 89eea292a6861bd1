"""The simulator finds what it is there to find: twelve bugs, planted one at a time (issue of R7-R12)."""

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
    pytest.fail(f"{planted.name}: not noticed in {len(SEEDS)} seeds")


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_a_planted_bug_is_caught(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7-R12: within 40 seeds, and for the right reason."""
    planted.plant(monkeypatch)
    seed, text = first_violation(planted)
    assert re.search(planted.text, text), f"seed {seed}: {text}"


def test_the_same_seeds_pass_without_one() -> None:
    """R7-R12: what was caught was the bug."""
    for seed in SEEDS:
        World(seed).run()
