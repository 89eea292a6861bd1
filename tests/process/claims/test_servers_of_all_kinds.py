"""A queue on three servers, each with a store of another kind, while the stores are killed, stopped and moved away (D4, D9, M10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.testing.postgresql import PrivatePostgresql
from tests.harness.scenarios.three_servers import make_domain, run_faults
from tests.harness.services.daemons import Daemons


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path / "global", count=2, memory="256M")
    yield made
    made.close()


def test_senders_and_query_go_on_while_stores_of_all_kinds_fail(
    tmp_path: Path, database: PrivatePostgresql, daemons: Daemons
) -> None:
    """D4, D9, M10, C5: whichever store is away, its server goes down by itself: senders go elsewhere, the query delivers the
    messages of the other two servers, those of the third wait and return with it, and each comes exactly once."""
    faults = make_domain(str(tmp_path / "root"), database, daemons, lease="4 s")
    print(*run_faults(str(tmp_path / "root"), faults, away_s=0.0), sep="\n")


@pytest.mark.soak
def test_senders_and_query_go_on_for_a_minute_without_each_store(
    tmp_path: Path, database: PrivatePostgresql, daemons: Daemons
) -> None:
    """D4, D9, M10, C5: the same with the usual lease, each store away for a minute."""
    faults = make_domain(str(tmp_path / "root"), database, daemons, lease="10 s")
    print(*run_faults(str(tmp_path / "root"), faults, away_s=60.0, pause_s=0.05), sep="\n")
