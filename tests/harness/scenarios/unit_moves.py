"""Units of order on servers that come, go and fail, with consumers that are killed (T10, D1, D4): the test and its account."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import spark_jms
from spark_jms.errors import MemberRemovalError
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked
from tests.harness.project import PROGRAMS

LOST = "a consumer that lost its claim"
APP = PROGRAMS / "unit_moves_app.py"


@dataclass(frozen=True)
class Row:
    """A message that a consumer received; without a unit: it acknowledged all that it had received, or, if `lost`, perhaps a
    part of it. `acknowledging`: it begins to, so from then on another consumer may have the next message."""

    at: float
    consumer: str
    unit: str
    number: int
    again: bool
    lost: bool
    acknowledging: bool


@dataclass(frozen=True)
class Plan:
    units: int  # of each of the two producers
    rounds: int  # messages of each unit
    servers: int  # at the most
    changes: int
    limit_s: float


class _Moves:
    """The domain and the processes of one run."""

    def __init__(self, path: Path, plan: Plan, seed: int) -> None:
        self._path, self._plan, self._draw = path, plan, random.Random(seed)
        self._root, self.directory = str(path / "root"), path / "work"
        self.directory.mkdir()
        self._names = [f"s{n}" for n in range(plan.servers)]
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._consumers = 0
        self._wanted = self._names[:3]
        self.happened: Counter[str] = Counter()
        self.killed: set[str] = set()

    def run(self) -> None:
        self._shape()
        try:
            for n in range(2):
                self._start("produce", f"p{n}", self._plan.units, self._plan.rounds)
            for _ in range(3):
                self._start_consumer()
            for change in range(self._plan.changes):
                due = self._plan.rounds * (change + 1) // (self._plan.changes + 1)
                self._wait(lambda due=due: max(self._round_of("p0"), self._round_of("p1")) >= due - 1)  # type: ignore[misc]
                what, work = (
                    ("members", self._change_members),
                    ("consumer", self._kill_a_consumer),
                    ("members", self._change_members),
                    ("server", self._take_a_server_away),
                )[change % 4]
                work()
                self.happened[what] += 1
            self._finish()
        finally:
            for process in self._running.values():
                if process.poll() is None:
                    process.send_signal(signal.SIGKILL)
                    process.wait()

    def _wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, self._plan.limit_s)

    def _shape(self) -> bool:
        module = {
            "servers": {name: {"store": "file"} for name in self._names},
            "destinations": {"orders": {"kind": "distributed-queue", "servers": self._wanted}},
        }
        try:
            spark_jms.apply(self._root, module)
        except MemberRemovalError:
            self.happened["left"] += 1
            return False
        self.happened["applied"] += 1
        return True

    def _start(self, role: str, name: str, *counts: int) -> None:
        arguments = [sys.executable, str(APP), self._root, str(self.directory), role, name, *map(str, counts)]
        self._running[name] = forked.Popen(arguments)

    def _start_consumer(self) -> None:
        self._start("consume", f"c{self._consumers}")
        self._consumers += 1

    def _round_of(self, name: str) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int((self.directory / f"{name}.round").read_text())
        return -1

    def _change_members(self) -> None:
        self._wanted = self._draw.sample(self._names, self._draw.randrange(2, self._plan.servers + 1))
        self._shape()

    def _kill_a_consumer(self) -> None:
        victim = self._draw.choice([name for name in self._running if name.startswith("c")])
        process = self._running.pop(victim)
        process.kill()
        process.wait()
        self.killed.add(victim)
        self._start_consumer()

    def _take_a_server_away(self) -> None:
        away = Domain(self._root).log("orders").refresh().destination.servers_in_use()[0]
        folder = Path(self._root) / "_jmsq" / "stores" / away
        folder.rename(self._path / "away")
        seen = self._round_of("p0")
        with suppress(AssertionError, TimeoutError):
            wait_until(lambda: self._round_of("p0") > seen, 2.0)
        (self._path / "away").rename(folder)

    def _finish(self) -> None:
        self._wait(lambda: all((self.directory / f"p{n}.done").exists() for n in range(2)))
        total = 2 * self._plan.units * self._plan.rounds
        self._wait(lambda: received(self.directory) == total)
        self._wait(self._shape)
        (self.directory / "stop").touch()
        for process in self._running.values():
            assert process.wait(60) == 0


def run_unit_moves(tmp_path: Path, plan: Plan, seed: int) -> dict[str, int]:
    """Raises AssertionError for a unit that lost its order, was in two hands, or is not whole. Returns what happened."""
    moves = _Moves(tmp_path, plan, seed)
    moves.run()
    check_account(moves.directory, plan.rounds, moves.killed)
    return dict(moves.happened)


def _rows(directory: Path) -> Iterator[Row]:
    """In the order of time."""
    found = []
    for path in directory.glob("c*.jsonl"):
        for line in path.read_text().splitlines():
            with suppress(ValueError):  # the last line of a killed consumer
                row = json.loads(line)
                found.append(
                    Row(
                        row["at"],
                        path.stem,
                        row.get("unit", ""),
                        row.get("number", -1),
                        row.get("again", False),
                        row.get("lost", False),
                        row.get("acknowledging", False),
                    )
                )
    return iter(sorted(found, key=lambda row: row.at))


def received(directory: Path) -> int:
    return len({(row.unit, row.number) for row in _rows(directory) if row.unit})


def check_account(directory: Path, rounds: int, killed: Collection[str]) -> None:
    """Each unit arrives in order, and whole. What comes again is flagged, and not after it was acknowledged. Nothing of a unit is
    received while another consumer has an earlier message of it, unless that one died, or lost its claim with its server."""
    done: Counter[str] = Counter()
    holding: dict[str, tuple[str, int]] = {}  # unit -> who has how many of its messages, received and not acknowledged
    acknowledging: set[str] = set()
    for row in _rows(directory):
        if row.acknowledging:
            acknowledging.add(row.consumer)
            continue
        if not row.unit:
            acknowledging.discard(row.consumer)
            for unit in [unit for unit, (consumer, _) in holding.items() if consumer == row.consumer]:
                if row.lost:
                    holding[unit] = LOST, holding[unit][1]
                else:
                    done[unit] += holding.pop(unit)[1]
            continue
        consumer, count = holding.get(row.unit, (row.consumer, 0))
        if consumer == row.consumer and row.number == done[row.unit] + count:
            holding[row.unit] = consumer, count + 1
            continue
        if consumer in (*killed, LOST):  # it may have acknowledged some without a note of it
            done[row.unit] = max(done[row.unit], min(row.number, done[row.unit] + count))
        elif consumer in acknowledging and row.number == done[row.unit] + count:  # its acknowledgement is kept already
            done[row.unit] += count
        else:
            assert row.again, f"{row}: {consumer} has {count} message(s) of the unit"
        assert row.number == done[row.unit], f"{row}: {done[row.unit]} message(s) of the unit are finished"
        holding[row.unit] = row.consumer, 1
    whole = Counter(done)
    for unit, (consumer, count) in holding.items():
        assert consumer in (*killed, LOST), f"{unit}: {consumer} has {count} message(s), and did not acknowledge them"
        whole[unit] += count
    assert set(whole.values()) == {rounds}, whole
