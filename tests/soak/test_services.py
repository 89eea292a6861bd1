"""`jmsq services` killed twenty times at random (T3, T6)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.harness.scenarios.killed_services import ATTACKS, check_attacked_services, check_killed_services


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_services_killed_twenty_times_count_each_message_once(tmp_path: Path, engine: str) -> None:
    """T3, T6: the aggregates equal a recount from scratch."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    check_killed_services(tmp_path, engine, kills=20, each=2_000, seed=seed)


@pytest.mark.soak
@pytest.mark.timeout(5_400)
def test_queries_attacked_fifty_times_end_each_message_once(tmp_path: Path) -> None:
    """T3, T6, M12: driver, Python workers, between sink and commit, two jobs at once, lost checkpoints, clean stops."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    attacks = [*ATTACKS, *chance.choices(ATTACKS, k=50 - len(ATTACKS))]
    check_attacked_services(tmp_path, attacks, each=200, seed=seed)
