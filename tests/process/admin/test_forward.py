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

DIES_BEHIND_THE_COMMIT = """
import os, sys
from spark_jms.claims.transactions import transfer

append = transfer.append_transfer
transfer.append_transfer = lambda *told: (append(*told), os._exit(9))
from spark_jms.cli.__main__ import main
sys.argv = ["jmsq", "forward", "orders", "--every", "50ms", "--root", sys.argv[1]]
main()
"""


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
        # A forwarder that was killed behind the commit at b has not ended its transfer at a: this context's housekeeping does.
        wait_until(lambda: not list(context.browser("a@orders")), 60)
        assert Counter(got) == Counter(sent)


def test_forwarder_that_dies_behind_its_commit_leaves_the_end_to_housekeeping(tmp_path: Path) -> None:
    """D5, C18: the messages are at the other member, once, and at their own until its transfer is ended: by the housekeeping of any
    context with a consumer."""
    root = str(tmp_path / "root")
    spark_jms.apply(root, MODULE)
    with spark_jms.connect(root, housekeeping=False) as watcher, watcher.producer("a@orders") as producer:
        sent = [producer.send(text=str(number)).message_id for number in range(14)]
        with (
            spark_jms.connect(root, housekeeping=False) as context,
            context.consumer("b@orders", acknowledge="auto") as consumer,
        ):
            dies = [sys.executable, "-c", DIES_BEHIND_THE_COMMIT, root]
            assert forked.run(dies, timeout=120).returncode == 9
            got = [consumer.receive(10).message_id for _ in sent]  # type: ignore[union-attr]
            assert consumer.receive(0) is None
        assert got == sent
        assert [message.message_id for message in watcher.browser("a@orders")] == sent
        with spark_jms.connect(root) as keeper, keeper.consumer("b@orders") as consumer:
            wait_until(lambda: not list(watcher.browser("a@orders")), 60)
            assert consumer.receive(0.5) is None
