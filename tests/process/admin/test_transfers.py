"""Movers in opposite directions, killed at any moment: each message stays in exactly one place (C18)."""

from __future__ import annotations

import random
import subprocess
import sys
import time

import pytest

from spark_jms import connect
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.upkeep import views
from spark_jms.client.context.context import Context
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.processes import forked
from tests.harness.project import PROGRAMS

MESSAGES = 600
KILLS = 12
MOVER = PROGRAMS / "mover.py"


def start(root: str, source: str, target: str) -> subprocess.Popen[str]:
    process = forked.Popen([sys.executable, str(MOVER), root, source, target], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "moving\n"
    return process


def stop(process: subprocess.Popen[str]) -> None:
    with process:  # closes its pipe and waits
        process.kill()


def ids(context: Context, destination: str) -> list[str]:
    return [str(message.message_id) for message in context.browser(destination)]


@pytest.mark.timeout(900)
def test_killed_movers_lose_and_double_nothing() -> None:
    """C18: two movers from orders to errors and one back, kill -9 after a random time, started again at once."""
    two = {"kind": "distributed-queue", "members": 2}
    ways = [("orders", "errors"), ("errors", "orders"), ("orders", "errors")]
    chance = random.Random()
    with memory_domain("file", orders=two, errors=two) as root, connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n)} for n in range(MESSAGES))
        sent = sorted(ids(context, "orders"))
        assert len(set(sent)) == MESSAGES
        processes = [start(root, *way) for way in ways]
        try:
            for kill in range(KILLS):
                time.sleep(chance.uniform(0.05, 0.6))
                which = kill % len(ways)
                stop(processes[which])
                processes[which] = start(root, *ways[which])
        finally:
            for process in processes:
                stop(process)
        for source, target in ways[:2]:
            move(domain_of(context), records_of(context), MoveOrder(source, target), wait_s=60)
        assert sorted(ids(context, "orders")) == sent
        assert ids(context, "errors") == []
        for destination in ("orders", "errors"):
            assert not views.transfers(domain_of(context), records_of(context), destination)
