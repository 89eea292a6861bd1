"""Senders of several processes against one small quota, killed while they wait and while they hold a reservation (T1)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.client import Consumer
from spark_jms.core.limits.quota import PREEMPTIVE, Limit
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.domains.quota_checks import check_entries
from tests.harness.processes import forked
from tests.harness.project import PROGRAMS, PROJECT

SENDER = PROGRAMS / "quota_sender.py"
LIMIT_S = 60
ENOUGH = 8  # messages of each sender that lives


class Sender:
    def __init__(self, root: str, destination: str, file: Path, hold: int = 0) -> None:
        self.name, self._file = file.stem, file
        command = [sys.executable, str(SENDER), root, destination, self.name, str(file), str(hold)]
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        self.process = forked.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)

    def texts(self, what: str) -> list[str]:
        if not self._file.exists():
            return []
        lines = self._file.read_text(encoding="utf-8").split("\n")[:-1]
        return [line.split(" ")[1] for line in lines if line.startswith(what)]

    @property
    def holds(self) -> bool:
        return self._file.with_suffix(".holding").exists()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(LIMIT_S)

    def ask_to_stop(self) -> None:
        self._file.with_suffix(".stop").touch()


@contextmanager
def senders(root: str, folder: Path) -> Iterator[dict[str, Sender]]:
    """`waits` and `holds` are to be killed."""
    made = {
        "holds": Sender(root, "orders", folder / "holds", hold=2),
        "waits": Sender(root, "returns", folder / "waits"),
        "first": Sender(root, "orders", folder / "first"),
        "second": Sender(root, "returns", folder / "second"),
    }
    with ExitStack() as stack:
        for sender in made.values():
            stack.callback(sender.process.communicate, timeout=LIMIT_S)
            stack.callback(sender.process.kill)
        yield made


@pytest.mark.parametrize("policy", ["FIFO", PREEMPTIVE])
def test_killed_senders_lose_nothing_and_hold_up_nobody(tmp_path: Path, policy: str) -> None:
    """T1, T2: used + reserved is within the maximum after every entry, and with FIFO nobody is overtaken; each message that was
    sent is there once."""
    root, limit = str(tmp_path / "root"), Limit(6, policy=policy)
    queue = {"kind": "queue", "quota": "small"}
    quota = {"messagesMaximum": limit.messages, "policy": policy}
    apply(root, {"quotas": {"small": quota}, "destinations": {"orders": queue, "returns": queue}})
    got: list[str] = []
    with connect(root) as context, senders(root, tmp_path) as alive:
        ledger = domain_of(context).quotas.ledger("small", limit, "orders")

        def waiting() -> set[str]:
            return {one.request.destination for one in ledger.read().state.waiting}

        with context.consumer("orders") as orders, context.consumer("returns") as returns:
            reader = drain(orders, returns, got)
            wait_until(lambda: reader() or alive["holds"].holds, LIMIT_S)
            wait_until(lambda: "returns" in waiting() and len(alive["waits"].texts("try")) > 0, LIMIT_S)
            alive.pop("holds").kill()
            alive.pop("waits").kill()
            begun = {name: len(sender.texts("sent")) for name, sender in alive.items()}
            wait_until(
                lambda: (
                    reader() or all(len(sender.texts("sent")) >= begun[name] + ENOUGH for name, sender in alive.items())
                ),
                LIMIT_S,
            )
            for sender in alive.values():
                sender.ask_to_stop()
            wait_until(lambda: reader() or all(s.process.poll() is not None for s in alive.values()), LIMIT_S)
            assert [sender.process.returncode for sender in alive.values()] == [0, 0]
            wait_until(lambda: reader() or domain_of(context).usage_of("orders").messages == 0, LIMIT_S)
            wait_until(lambda: reader() or domain_of(context).usage_of("returns").messages == 0, LIMIT_S)
        assert sorted(got) == sorted(set(got)), "none is there twice"
        for name in ("holds", "waits", "first", "second"):
            of_sender = [text for text in got if text.startswith(f"{name}:")]
            tried, sent = texts_of(tmp_path / name, "try"), texts_of(tmp_path / name, "sent")
            assert set(sent) <= set(of_sender) <= set(tried), name
            assert len(of_sender) <= len(sent) + 1
        check_entries(ledger.history(), limit)
        state = domain_of(context).quotas.now(ledger).state
        assert state.used.messages == 0


def texts_of(file: Path, what: str) -> list[str]:
    lines = file.read_text(encoding="utf-8").split("\n")[:-1]
    return [line.split(" ")[1] for line in lines if line.startswith(what)]


def drain(orders: Consumer, returns: Consumer, got: list[str]) -> Callable[[], bool]:
    """Receives one message of each, if there is one: slower than the senders. Returns False."""

    def once() -> bool:
        for consumer in (orders, returns):
            message = consumer.receive(timeout=0)
            if message is not None:
                assert message.text is not None
                got.append(message.text)
                message.acknowledge()
        return False

    return once
