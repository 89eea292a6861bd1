"""`jmsq services` as a process: killed, started again, and stopped (T3, T6, C14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.killed_services import check_attacked_services, check_killed_services


@pytest.mark.parametrize("engine", ["threads", pytest.param("spark", marks=pytest.mark.spark)])
def test_killed_services_count_each_message_once(tmp_path: Path, engine: str) -> None:
    """T3, T6: whenever the process is killed, the next one continues; the counts equal those of the messages, and the usage
    history equals a recount. SIGTERM ends it."""
    check_killed_services(tmp_path, engine, kills=3, each=200, seed=1, most=1 if engine == "spark" else 3)


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_queries_attacked_at_their_sinks_end_each_message_once(tmp_path: Path) -> None:
    """T3, T6, M12: killed between the sinks and Spark's commit, beside a second process, and with a lost checkpoint; the soak has
    fifty attacks."""
    check_attacked_services(tmp_path, ["history", "due sink", "second", "checkpoint"], each=50, seed=1)
