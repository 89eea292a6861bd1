"""The servers model finds each of the bugs that are planted in the isolation of several servers, one at a time (M4, M10)."""

from __future__ import annotations

import re

import pytest

from tests.models.planted.in_servers import PLANTED_IN_SERVERS
from tests.models.planted.patch import PlantedPatch, first_violation
from tests.simulation.test_servers_model import run

SEEDS = range(1, 81)

pytestmark = pytest.mark.usefixtures("quiet_model")


@pytest.mark.parametrize("planted", PLANTED_IN_SERVERS, ids=str)
def test_servers_model_finds_a_planted_bug(planted: PlantedPatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """M4, M10: within 80 seeds, and for the right reason."""
    planted.plant(monkeypatch)
    seed, text = first_violation(planted, run, SEEDS)
    assert re.search(planted.text, text), f"seed {seed}: {text}"
