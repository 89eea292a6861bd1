"""kill -9 of a program that sends numbered messages under a producer id, restarted until all are sent (M1)."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from spark_jms import apply, connect

MESSAGES = 2_000
KILLS = 4
WAYS = ("counted", "asynchronous", "numbered")
LIMIT_S = 120

# Sends "1", "2" … behind the last one in the table, and prints a line after each. In the second way it repeats all of them.
_LOADER = """
import sys
from spark_jms import connect
root, messages, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Told:
    def on_completion(self, message):
        print("sent", flush=True)
    def on_exception(self, message, error):
        raise error

with connect(root, housekeeping=False) as context:
    producer = context.producer("orders", producer_id="loader")
    print("open", flush=True)
    if way == "numbered":
        for number in range(1, messages + 1):
            if producer.send(text=str(number), sequence=number).message_id:
                print("sent", flush=True)
    else:
        for number in range(producer.last_sequence + 1, messages + 1):
            if way == "asynchronous":
                producer.send(text=str(number), completion=Told())
            else:
                producer.send(text=str(number))
                print("sent", flush=True)
"""


def run(root: Path, way: str, kill_after_lines: int | None) -> bool:
    """Until it has ended, or has printed so many lines and is killed. True: it has ended."""
    with subprocess.Popen(
        [sys.executable, "-c", _LOADER, str(root), str(MESSAGES), way], stdout=subprocess.PIPE, text=True
    ) as loader:
        assert loader.stdout is not None
        for lines, _ in enumerate(loader.stdout, 1):
            if lines == kill_after_lines:
                os.kill(loader.pid, signal.SIGKILL)
                break
        ended = loader.wait(LIMIT_S)
    assert ended in (0, -signal.SIGKILL)
    return ended == 0


def test_each_message_is_sent_once_by_a_program_that_is_killed(tmp_path: Path) -> None:
    """M1: at every step the kill may come, and however the program sends. The table keeps the order of the messages."""
    apply(tmp_path, {"destinations": {"orders": {"kind": "queue"}}})
    chance = random.Random(1)
    for number in range(KILLS):
        run(tmp_path, WAYS[number % len(WAYS)], chance.randint(1, 2 * MESSAGES // KILLS))
    assert run(tmp_path, "numbered", None)
    with connect(tmp_path, housekeeping=False) as context:
        assert [message.text for message in context.browser("orders")] == [str(n) for n in range(1, MESSAGES + 1)]
        assert context.producer("orders", producer_id="loader").last_sequence == MESSAGES
