"""Units of order on servers that come, go and fail, with consumers that are killed (T10, D1, D4): the test and its account."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import spark_jms
from spark_jms.errors import MemberRemovalError
from spark_jms.log.domain import Domain
from spark_jms.testing.waiting import wait_until

APP = Path(__file__).with_name("unit_moves_app.py")


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
    killed: dict[str, float] = {}

    def start(role: str, name: str, *counts: int) -> None:
        arguments = [sys.executable, str(APP), root, str(directory), role, name, *map(str, counts)]
        running[name] = subprocess.Popen(arguments)

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
                killed[victim] = 1
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
        wait_until(lambda: len(acknowledged(directory)) == total, plan.limit_s)
        wait_until(lambda: shape(wanted), plan.limit_s)
        (directory / "stop").touch()
        for process in running.values():
            assert process.wait(60) == 0
    finally:
        for process in running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
    check_account(directory, plan.rounds)
    return dict(happened)


def _rows(directory: Path, name: str) -> list[dict[str, object]]:
    lines = (directory / name).read_text().splitlines()
    rows = []
    for line in lines:
        with suppress(ValueError):  # the last line of a killed consumer
            rows.append(json.loads(line))
    return rows


def acknowledged(directory: Path) -> set[tuple[str, int]]:
    files = [path.name for path in directory.glob("c*.jsonl")]
    return {(str(r["unit"]), int(str(r["number"]))) for f in files for r in _rows(directory, f) if r["acknowledged"]}


def check_account(directory: Path, rounds: int) -> None:
    """Each unit arrives in order; what comes again is flagged, and not after it was acknowledged; nothing of a unit is received
    while another consumer has an earlier message of it."""
    seen: dict[str, list[tuple[float, str, int, bool, bool]]] = {}
    for path in sorted(directory.glob("c*.jsonl")):
        for row in _rows(directory, path.name):
            entry = (
                float(str(row["at"])),
                path.stem,
                int(str(row["number"])),
                bool(row["again"]),
                bool(row["acknowledged"]),
            )
            seen.setdefault(str(row["unit"]), []).append(entry)
    for unit, entries in seen.items():
        done: set[int] = set()
        holder: tuple[str, int] | None = None  # received and not acknowledged
        for _, consumer, number, again, is_acknowledged in sorted(entries):
            if is_acknowledged:
                assert holder == (consumer, number), (unit, number, consumer, holder)
                done.add(number)
                holder = None
                continue
            assert number == len(done), (
                f"{unit}: message {number} came after {len(done)} were finished: {sorted(entries)}"
            )
            if holder is not None:  # its consumer died, or was fenced while its server was away
                assert again, f"{unit}: message {number} is with {holder} and {consumer}: {sorted(entries)}"
            holder = consumer, number
        assert len(done) == rounds, (unit, sorted(done))
