"""`jmsq forward`, killed at any moment: each message arrives once, on the member that has a consumer (D5, C18)."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked

KILLS = 5
EACH = 30  # messages that arrive between two kills
MODULE: dict[str, Any] = {
    "servers": {"a": {"store": "file"}, "b": {"store": "file"}},
    "destinations": {"orders": {"kind": "distributed-queue", "servers": ["a", "b"], "forwardDelay": "0"}},
}


def start(root: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "spark_jms.cli", "forward", "orders", "--every", "50ms", "--root", root]
    return forked.Popen(command, stdout=subprocess.DEVNULL)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@pytest.mark.timeout(900)
def test_killed_forwarders_lose_and_double_nothing(tmp_path: Path) -> None:
    """D5, C18: a sender sends to the member without consumers; two forwarders are killed with kill -9 in turn and started again.
    The consumer of the other member gets each message once."""
    root = str(tmp_path / "root")
    spark_jms.apply(root, MODULE)
    chance = random.Random()
    sent: list[str] = []
    done = threading.Event()

    def sends() -> None:
        with spark_jms.connect(root, housekeeping=False) as context, context.producer("a@orders") as producer:
            while not done.is_set():
                sent.append(producer.send(text=str(len(sent))).message_id)
                time.sleep(0.01)  # leaves the forwarders room to run

    got: list[str] = []
    sender = threading.Thread(target=sends)
    with spark_jms.connect(root) as context:
        context.consumer("b@orders", acknowledge="dups-ok", listener=lambda message: got.append(message.message_id))
        sender.start()
        forwarders = [start(root), start(root)]
        try:
            for number in range(KILLS):
                before = len(got)
                wait_until(lambda before=before: len(got) >= before + EACH, 120)  # type: ignore[misc]
                time.sleep(chance.uniform(0, 0.05))
                which = number % 2
                kill(forwarders[which])
                forwarders[which] = start(root)
            done.set()
            sender.join()
            wait_until(lambda: len(got) >= len(sent), 120)
        finally:
            done.set()
            sender.join()
            for process in forwarders:
                kill(process)
        assert Counter(got) == Counter(sent)
        assert [message.message_id for message in context.browser("a@orders")] == []
