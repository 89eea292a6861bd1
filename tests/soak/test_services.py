"""`jmsq services` killed twenty times at random (T3, T6)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.harness.scenarios.killed_services import check_killed_services


@pytest.mark.soak
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("engine", ["threads", "spark"])
def test_services_killed_twenty_times_count_each_message_once(tmp_path: Path, engine: str) -> None:
    """T3, T6: the aggregates equal a recount from scratch."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    check_killed_services(tmp_path, engine, kills=20, each=2_000, seed=seed)
