"""The queue model finds each of the bugs that are planted in core, log and claims, one at a time (C5, C8, C9, C13, C18)."""

from __future__ import annotations

import re

import pytest

from tests.models.planted.in_queues import PLANTED_IN_QUEUES
from tests.models.planted.patch import PlantedPatch, first_violation
from tests.models.queue import run

SEEDS = range(200)


pytestmark = pytest.mark.usefixtures("quiet_model")


@pytest.mark.parametrize("planted", PLANTED_IN_QUEUES, ids=str)
def test_queue_model_finds_a_planted_bug(planted: PlantedPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5, C8, C9, C13, C18: within 200 seeds, and for the right reason."""
    planted.plant(monkeypatch)
    seed, text = first_violation(planted, lambda seed: run(seed, often=planted.often), SEEDS)
    assert re.search(planted.text, text), f"seed {seed}: {text}"


def test_queue_model_passes_without_a_bug() -> None:
    """C5: the violations above come from the planted bugs alone."""
    for planted in PLANTED_IN_QUEUES:
        for seed in range(4):
            run(seed, often=planted.often)
