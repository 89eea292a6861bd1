"""Shared by the tests with real daemons of the replicated store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.regions_cluster import FaultyDaemons, Make


@pytest.fixture
def make_daemons(tmp_path: Path) -> Iterator[Make]:
    made: list[FaultyDaemons] = []

    def cluster(count: int = 3, memory: str = "256M", **environment: str) -> FaultyDaemons:
        made.append(FaultyDaemons(tmp_path / "global", count, memory, environment))
        return made[-1]

    yield cluster
    for each in made:
        each.close()
