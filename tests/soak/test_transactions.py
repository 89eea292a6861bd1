"""A bank that is killed all the time: 10,000 transfers between two queues and an account in a database (T16)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.services.databases import private_postgresql
from tests.process.client.test_transactions import keep_the_sum, made_account, transactor


@pytest.mark.soak
def test_a_bank_in_sqlite_keeps_its_sum(tmp_path: Path) -> None:
    """T16"""
    with transactor() as process:
        keep_the_sum(process, made_account(str(tmp_path / "bank.db")), transfers=10_000)


@pytest.mark.soak
def test_a_bank_in_postgresql_keeps_its_sum() -> None:
    """T16"""
    with private_postgresql() as server, transactor() as process:
        keep_the_sum(process, made_account(server.uri().removeprefix("jdbc:").split("?")[0]), transfers=10_000)
