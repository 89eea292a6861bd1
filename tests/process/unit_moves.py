"""Units of order on servers that come, go and fail, with consumers that are killed (T10, D1, D4): the test and its account."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import spark_jms
from spark_jms.errors import MemberRemovalError
from spark_jms.log.domain import Domain
from spark_jms.testing.waiting import wait_until
from tests import forked

LOST = "a consumer that lost its claim"
APP = Path(__file__).with_name("unit_moves_app.py")


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


def run_unit_moves(tmp_path: Path, plan: Plan, seed: int) -> dict[str, int]:
    """Raises AssertionError for a unit that lost its order, was in two hands, or is not whole. Returns what happened."""
    draw = random.Random(seed)
    root, directory = str(tmp_path / "root"), tmp_path / "work"
    directory.mkdir()
    names = [f"s{n}" for n in range(plan.servers)]
    happened: Counter[str] = Counter()

    def shape(servers: list[str]) -> bool:
        module = {
            "servers": {name: {"store": "file"} for name in names},
            "destinations": {"orders": {"kind": "distributed-queue", "servers": servers}},
        }
        try:
            spark_jms.apply(root, module)
        except MemberRemovalError:
            happened["left"] += 1
            return False
        happened["applied"] += 1
        return True

    shape(names[:3])
    running: dict[str, subprocess.Popen[bytes]] = {}
    killed: set[str] = set()

    def start(role: str, name: str, *counts: int) -> None:
        arguments = [sys.executable, str(APP), root, str(directory), role, name, *map(str, counts)]
        running[name] = forked.Popen(arguments)

    def round_of(name: str) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int((directory / f"{name}.round").read_text())
        return -1

    try:
        for n in range(2):
            start("produce", f"p{n}", plan.units, plan.rounds)
        for n in range(3):
            start("consume", f"c{n}")
        consumers, wanted = 3, names[:3]
        for change in range(plan.changes):
            due = plan.rounds * (change + 1) // (plan.changes + 1)
            wait_until(lambda due=due: max(round_of("p0"), round_of("p1")) >= due - 1, plan.limit_s)
            what = ("members", "consumer", "members", "server")[change % 4]
            if what == "members":
                wanted = draw.sample(names, draw.randrange(2, plan.servers + 1))
                shape(wanted)
            elif what == "consumer":
                victim = draw.choice([name for name in running if name.startswith("c")])
                process = running.pop(victim)
                process.kill()
                process.wait()
                killed.add(victim)
                start("consume", f"c{consumers}")
                consumers += 1
            else:
                away = Domain(root).log("orders").refresh().destination.servers_in_use()[0]
                folder = Path(root) / "_jmsq" / "stores" / away
                folder.rename(tmp_path / "away")
                seen = round_of("p0")
                with suppress(AssertionError, TimeoutError):
                    wait_until(lambda seen=seen: round_of("p0") > seen, 2.0)
                (tmp_path / "away").rename(folder)
            happened[what] += 1
        wait_until(lambda: all((directory / f"p{n}.done").exists() for n in range(2)), plan.limit_s)
        total = 2 * plan.units * plan.rounds
        wait_until(lambda: received(directory) == total, plan.limit_s)
        wait_until(lambda: shape(wanted), plan.limit_s)
        (directory / "stop").touch()
        for process in running.values():
            assert process.wait(60) == 0
    finally:
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    check_account(directory, plan.rounds, killed)
    return dict(happened)


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
