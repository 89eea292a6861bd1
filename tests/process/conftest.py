"""Shared by the tests with real daemons of the replicated store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.store.regions.daemon.shared_memory import can_lock
from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.services.databases import private_postgresql
from tests.harness.stores.regions_cluster import FaultyDaemons, Make

if not can_lock(2 << 30):  # an ordinary user: tests that start daemons without `jmsq store up`
    os.environ.setdefault("RS_LOCK_MEMORY", "false")


@pytest.fixture
def database() -> Iterator[PrivatePostgresql]:
    """One that the test may stop."""
    with private_postgresql() as server:
        yield server


@pytest.fixture
def make_daemons(tmp_path: Path) -> Iterator[Make]:
    made: list[FaultyDaemons] = []

    def cluster(count: int = 3, memory: str = "256M", **environment: str) -> FaultyDaemons:
        made.append(FaultyDaemons(tmp_path / "global", count, memory, environment))
        return made[-1]

    yield cluster
    for each in made:
        each.close()
