"""Processes that change one record set at once, while some are killed or stopped: none is starved, and each change counts once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

from spark_jms.store import open_store
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked
from tests.harness.project import PROJECT

RECORD = "shared"
TIMEOUT_MS = 2_000
PROCESSES = 6
ENOUGH = 40


class Changer:
    """`acknowledged` are the numbers of its changes, `unknown` those that it cannot tell."""

    def __init__(self, uri: str, writer: str) -> None:
        self.writer, self.acknowledged, self.unknown, self.ready = writer, [], [], threading.Event()  # type: ignore[var-annotated]
        self.process = forked.Popen(
            [sys.executable, "-m", "tests.harness.stores.store_changer", uri, RECORD, writer, str(TIMEOUT_MS)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self._thread = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._thread.start()

    def _read(self, out: IO[str]) -> None:
        for line in out:
            word, *rest = line.split()
            if word == "ready":
                self.ready.set()
            elif word in ("n", "unknown") and rest:
                (self.acknowledged if word == "n" else self.unknown).append(int(rest[0]))

    def kill(self) -> None:
        self.process.kill()
        self.join()

    def stop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.join()

    def join(self) -> None:
        self.process.wait()
        self._thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def start(uri: str) -> Iterator[Callable[[str], Changer]]:
    started: list[Changer] = []

    def make(writer: str) -> Changer:
        started.append(Changer(uri, writer))
        return started[-1]

    yield make
    for changer in started:
        if changer.process.poll() is None:
            changer.kill()


@pytest.fixture(params=["file", "sqlite", "postgresql", "replicated"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "file":
            return str(tmp_path / "store")
        case "sqlite":
            return f"jdbc:sqlite:///{tmp_path / 's.db'}"
        case kind:
            return str(request.getfixturevalue(kind).uri())


def start_all(start: Callable[[str], Changer], count: int) -> list[Changer]:
    """The first makes the store."""
    changers = [start("w0")]
    assert changers[0].ready.wait(60)
    changers += [start(f"w{number}") for number in range(1, count)]
    assert all(changer.ready.wait(60) for changer in changers)
    return changers


def goes_on(changer: Changer, changes: int) -> None:
    """It makes so many more."""
    enough = len(changer.acknowledged) + changes
    wait_until(lambda: len(changer.acknowledged) >= enough, timeout_s=60)


def check(uri: str, changers: list[Changer]) -> None:
    """Every acknowledged change is there; no change counted twice, and none that nobody asked for."""
    with open_store(uri, session_timeout_ms=TIMEOUT_MS) as store:
        kept = store.peek(RECORD)
    count = int(kept.pop("n"))
    assert count == len(kept) == len(set(kept.values()))
    for changer in changers:
        own = {int(key.split("/")[1]) for key in kept if key.startswith(f"{changer.writer}/")}
        assert set(changer.acknowledged) <= own
        # A killed process may have made one more change than it could print.
        assert own <= {*changer.acknowledged, *changer.unknown, max(own, default=0)}


def test_no_process_is_starved(uri: str, start: Callable[[str], Changer]) -> None:
    """C9: six processes change one record set; when all have made enough, nobody has made less than a quarter of the mean."""
    changers = start_all(start, PROCESSES)
    before = {changer.writer: len(changer.acknowledged) for changer in changers}
    wait_until(lambda: all(len(c.acknowledged) >= before[c.writer] + ENOUGH for c in changers), timeout_s=120)
    made = [len(changer.acknowledged) - before[changer.writer] for changer in changers]
    for changer in changers:
        changer.stop()
    assert min(made) * 4 >= sum(made) / len(made), made
    assert not any(changer.unknown for changer in changers)
    check(uri, changers)


def test_kills_and_stops_lose_nothing_and_do_nothing_twice(uri: str, start: Callable[[str], Changer]) -> None:
    """C9, S6, R8: the engine of the store is killed, too, and a stopped process wakes when it has been taken for dead. If that one
    is the engine of a database, the others wait meanwhile (docs/DATA-STORES.md)."""
    changers = start_all(start, 4)
    last = changers[-1]  # it is never hit
    for round_number, victim in enumerate(changers[:-1]):
        goes_on(victim, 10)
        if round_number == 1:
            victim.process.send_signal(signal.SIGSTOP)
            time.sleep(2 * TIMEOUT_MS / 1000)
            victim.process.send_signal(signal.SIGCONT)
            goes_on(victim, 5)
        else:
            victim.kill()
        goes_on(last, 10)
    for changer in changers:
        if changer.process.poll() is None:
            changer.stop()
    check(uri, changers)
