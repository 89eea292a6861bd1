"""`jmsq services` as a process: killed, started again, and stopped (T3, T6, C14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.scenarios.killed_services import check_killed_services


@pytest.mark.parametrize("engine", ["threads", pytest.param("spark", marks=pytest.mark.spark)])
def test_killed_services_count_each_message_once(tmp_path: Path, engine: str) -> None:
    """T3, T6: whenever the process is killed, the next one continues; the counts equal those of the messages, and the usage
    history equals a recount. SIGTERM ends it."""
    check_killed_services(tmp_path, engine, kills=3, each=200, seed=1, most=1 if engine == "spark" else 3)
