"""Daemons are killed, stopped and cut off at random under load, and no acknowledged write is lost (R7, R9, R10, R15)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.harness.stores.regions_cluster import FaultyDaemons, Make, Storm, WriterProcess, audit

SEED = 20_261_121
CLIENTS = 4
FAULTS, LIMIT_S = 30, 75.0


def run_storm(daemons: FaultyDaemons, place: Path, faults: int, limit_s: float) -> None:
    writers = [WriterProcess(daemons.path, f"w{number}", SEED + number, place) for number in range(CLIENTS)]
    try:
        storm = Storm(daemons, writers, SEED)
        begun_s = time.monotonic()
        while len(storm.outages) < faults and time.monotonic() - begun_s < limit_s:
            storm.fault()
        storm.wait_for_copies()
        spent_s = time.monotonic() - begun_s
        for writer in writers:
            writer.finish()
    finally:
        for writer in writers:
            writer.close()
    accounts = [writer.account() for writer in writers]
    objects = sum(audit(daemons.path, writer.store, account) for writer, account in zip(writers, accounts, strict=True))
    acknowledged = sum(len(account.acknowledged) for account in accounts)
    attached = sum(len(account.attached) for account in accounts)
    print(
        f"\n{len(storm.outages)} faults in {spent_s:.0f} s, {acknowledged} acknowledged operations, 0 lost, "
        f"{objects} objects at the end, {attached} attachments\n"
        "the longest time that a client had nothing acknowledged, least / middle / most:\n"
        f"{storm.figures()}"
    )
    assert "a fault of the daemon itself" not in daemons.output()
    assert "cannot take" not in daemons.output()


@pytest.mark.timeout(900)
def test_random_faults_lose_no_acknowledged_write(make_daemons: Make, tmp_path: Path) -> None:
    """R10, R15: as many of the hundred faults as fit into the time."""
    run_storm(make_daemons(), tmp_path, FAULTS, LIMIT_S)


@pytest.mark.soak
def test_a_hundred_random_faults_lose_no_acknowledged_write(make_daemons: Make, tmp_path: Path) -> None:
    """R10, R15: all hundred faults."""
    run_storm(make_daemons(), tmp_path, 100, 3_600)
