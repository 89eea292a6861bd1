"""Processes that are killed at random, and the account of all messages that they leave (C5, C8, C9, C10, C12, C18, T6).

Once everything is quiet, for each destination, subscription and member:

    numbers that the table has given = sent + transferred in
                                     = present + acknowledged + expired + refused + skipped + removed + transferred out

Each term comes from a place of its own: the numbers and the messages from the table, what is present from the store, what became
of the others from the life-cycle log, by whom they were finished from the acknowledgement table, and what was sent and received
from the notes of the processes.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import spark_jms
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.life_cycle_view import EventRow, events
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.log.changes.feed import ChangeFeed
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.fields import LifeEvent
from spark_jms.store import Store
from spark_jms.testing import wait_until
from tests.harness.programs.conservation_app import DEAR
from tests.harness.project import PROGRAMS, PROJECT

APP = PROGRAMS / "conservation_app.py"
QUEUES = ("orders", "aside", "failed")
_ENDS = (
    LifeEvent.ACKNOWLEDGED,
    LifeEvent.EXPIRED,
    LifeEvent.REFUSED,
    LifeEvent.SKIPPED,
    LifeEvent.REMOVED,
    LifeEvent.TRANSFERRED,
)
_KINDS = {
    "finished": LifeEvent.ACKNOWLEDGED,
    "expired": LifeEvent.EXPIRED,
    "purged": LifeEvent.REMOVED,
    "moved": LifeEvent.TRANSFERRED,
    "aside": LifeEvent.TRANSFERRED,
    "dropped": LifeEvent.REMOVED,  # unless its detail names an error destination
}
ROLES = (
    *("produce", "produce", "consume-orders", "consume-orders", "consume-aside", "consume-all", "consume-dear"),
    *("administer", "administer", "keep-house"),
)


_LEAST = 10  # lines


@dataclass(frozen=True)
class Plan:
    """`consumers`: of the queue orders. One process in `stops` kills is stopped before, for up to `longest_stop_s`; None: none."""

    kills: int
    longest_life_s: float  # between two kills
    consumers: int = 2
    stops: int | None = None
    longest_stop_s: float = 12.0  # longer than a session lives without a heartbeat

    @property
    def roles(self) -> tuple[str, ...]:
        return (*ROLES, *["consume-orders"] * (self.consumers - ROLES.count("consume-orders")))


def run_conservation(tmp_path: Path, plan: Plan, seed: int) -> Counter[str]:
    """Raises AssertionError for an account that is not balanced. Returns how many messages ended in each way."""
    draw = random.Random(seed)
    root, directory = str(tmp_path / "root"), tmp_path / "work"
    directory.mkdir()
    _declare(root)
    with _nursery(root, directory) as nursery:
        roles = plan.roles
        running = [nursery.start(role, f"{role}-{n}") for n, role in enumerate(roles)]
        stopped: dict[int, float] = {}  # pid -> until when
        for kill in range(plan.kills):
            time.sleep(draw.uniform(0.02, plan.longest_life_s))
            _check_alive(directory)
            _wake(stopped, time.monotonic())
            if plan.stops is not None and kill % plan.stops == 0:
                asleep = running[draw.choice([n for n, role in enumerate(roles) if role.startswith("consume")])]
                os.kill(asleep, signal.SIGSTOP)
                stopped[asleep] = time.monotonic() + draw.uniform(0.0, plan.longest_stop_s)
            which = draw.randrange(len(running))
            os.kill(running[which], signal.SIGKILL)
            stopped.pop(running[which], None)
            running[which] = nursery.start(roles[which], f"{roles[which]}-{len(roles) + kill}")
        _wake(stopped, float("inf"))
        wait_until(lambda: _have_worked(directory), 120, "each role does its work")
        _check_alive(directory)
    domain = Domain(root)
    with views.opened_store(domain) as store:
        _finish_transfers(domain, store)
        return _Account(domain, store, _Notes.of(directory)).check()


def _wake(stopped: dict[int, float], now_s: float) -> None:
    for pid in [pid for pid, until_s in stopped.items() if until_s <= now_s]:
        os.kill(pid, signal.SIGCONT)
        del stopped[pid]


def _check_alive(directory: Path) -> None:
    for path in directory.glob("*.error"):
        raise AssertionError(f"{path.stem} has failed: {path.read_text()}")


def _have_worked(directory: Path) -> bool:
    """Each role but housekeeping has noted something, in whichever of its lives."""
    _check_alive(directory)
    lines = Counter[str]()
    for path in directory.glob("*.jsonl"):
        lines[path.stem.rsplit("-", 1)[0]] += path.read_text().count("\n")
    return all(lines[role] >= _LEAST for role in ROLES if role != "keep-house")


def _declare(root: str) -> None:
    logged = {"messageLoggingEnabled": True}
    kept = {"retention": "1 h", **logged}  # finished messages stay readable
    limited = {"redeliveryLimit": 2, "errorDestination": "failed"}
    destinations = {
        "failed": {"kind": "queue", **kept},
        "orders": {"kind": "distributed-queue", "members": 2, **limited, **kept},
        "aside": {"kind": "distributed-queue", "members": 2, **kept},
        "prices": {"kind": "distributed-topic", "members": 2, "fileGrace": "1 s", **logged},
    }
    spark_jms.apply(root, {"destinations": destinations})
    with spark_jms.connect(root, housekeeping=False) as context:
        context.consumer("prices", subscription="all").close()
        context.consumer("prices", subscription="dear", selector=DEAR).close()


class _Nursery:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, role: str, name: str) -> int:
        """The pid."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{role} {name}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def _nursery(root: str, directory: Path) -> Iterator[_Nursery]:
    process = subprocess.Popen(
        [sys.executable, str(APP), root, str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    with process:  # closes its input and waits
        yield _Nursery(process)


def _finish_transfers(domain: Domain, store: Store) -> None:
    """Those that were killed on their way."""
    keepers = [Housekeeper(domain, store, name) for name in domain.register.names()]

    def finished() -> bool:
        for keeper in keepers:
            keeper.run()
        return not any(views.transfers(domain, store, name) for name in domain.register.names())

    try:
        wait_until(finished, 60, "the end of all transfers")
        for keeper in keepers:
            keeper.run()  # what their end has left in the outboxes
    finally:
        for keeper in keepers:
            keeper.close()


@dataclass
class _Notes:
    """What the processes wrote down. A send that was tried and not confirmed may have been committed."""

    tried: list[tuple[str, list[str]]] = field(default_factory=list)  # destination, texts of one commit
    expiring: set[str] = field(default_factory=set)
    sent: set[str] = field(default_factory=set)
    got: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)  # role -> (member, sequence) -> times
    fresh: dict[str, Counter[tuple[int, int]]] = field(default_factory=dict)  # the same, not flagged

    @staticmethod
    def of(directory: Path) -> _Notes:
        notes = _Notes()
        for path in sorted(directory.glob("*.jsonl")):
            role = path.stem.rsplit("-", 1)[0]
            got, fresh = notes.got.setdefault(role, Counter()), notes.fresh.setdefault(role, Counter())
            for line in path.read_text().splitlines():
                with suppress(ValueError):  # the last line of a killed process
                    row: dict[str, Any] = json.loads(line)
                    if "tried" in row:
                        notes.tried.append((row["destination"], row["tried"]))
                        notes.expiring.update(row["expiring"])
                    notes.sent.update(row.get("sent", ()))
                    if "got" in row:
                        got[tuple(row["got"])] += 1
                        fresh[tuple(row["got"])] += not row["again"]
        return notes


class _Account:
    def __init__(self, domain: Domain, store: Store, notes: _Notes) -> None:
        self._domain, self._store, self._notes = domain, store, notes
        self._texts: dict[tuple[str, int, int], str] = {}  # destination, member, sequence
        self._ended: dict[tuple[str, str, int, LifeEvent], Ranges] = {}
        self._rows = {name: events(domain, store, name) for name in domain.register.names()}

    def check(self) -> Counter[str]:
        happened: Counter[str] = Counter()
        for destination in self._rows:
            snapshot = self._domain.log(destination).refresh()
            for member in snapshot.destination.member_ids:
                last = snapshot.last_sequence(member)
                self._check_sent(destination, member, last)
                for subscription in snapshot.destination.subscription_names():
                    self._check_member(destination, subscription, member, last)
                happened["sent"] += last
        self._check_acknowledgement_tables()
        self._check_messages()
        self._check_received()
        for (_, _, _, event), picks in self._ended.items():
            happened[event.value] += picks.count
        return happened

    def _check_sent(self, destination: str, member: int, last: int) -> None:
        sent = EMPTY
        for row in self._events(destination, "", member, LifeEvent.SENT):
            assert not sent & _ranges(row), f"{row} names messages again"
            sent |= _ranges(row)
        assert sent == Ranges.of((1, last)), f"{destination}/{member}: sent {sent}, numbers given up to {last}"

    def _check_member(self, destination: str, subscription: str, member: int, last: int) -> None:
        where = f"{destination}/{subscription}/{member}"
        state = state_of(self._store, self._domain.log(destination).snapshot, subscription, member)
        total = present = state.unfinished(1, last)
        for event in _ENDS:
            ended = EMPTY
            for row in self._events(destination, subscription, member, event):
                assert not total & _ranges(row), (
                    f"{row}: messages {total & _ranges(row)} are present or have ended twice"
                )
                ended, total = ended | _ranges(row), total | _ranges(row)
            self._ended[destination, subscription, member, event] = ended
        assert total == Ranges.of((1, last)), (
            f"{where}: nothing tells what became of {Ranges.of((1, last)) - total}; {present.count} are present"
        )

    def _check_acknowledgement_tables(self) -> None:
        """Each message that has ended is in one row, which tells how (C14, M12): the change feed has the same as the life-cycle log.
        Of refused and skipped messages it has the number."""
        found: dict[tuple[str, str, int, LifeEvent], Ranges] = {}
        skipped, sent = Counter[tuple[str, str, int]](), Counter[tuple[str, int]]()
        for row in ChangeFeed(self._domain):
            assert row.kind != "gone" or row.detail == "sent", row
            if row.kind in ("sent", "gone"):
                sent[row.destination, row.member] += row.messages or 0
                continue
            assert row.subscription is not None
            if row.kind == "skipped":
                skipped[row.destination, row.subscription, row.member] += row.messages or 0
                continue
            event = LifeEvent.TRANSFERRED if row.kind == "dropped" and row.detail else _KINDS[row.kind]
            place = row.destination, row.subscription, row.member, event
            before, picks = found.get(place, EMPTY), Ranges.from_json(json.loads(row.ranges or ""))
            assert not before & picks, f"{row} ends {before & picks} again"
            found[place] = before | picks
        for destination, subscription, member, event in self._ended:
            mine = self._ended[destination, subscription, member, event]
            if event in _KINDS.values():
                assert found.get((destination, subscription, member, event), EMPTY) == mine, (destination, event)
            last = self._domain.log(destination).snapshot.last_sequence(member)
            assert sent[destination, member] == last
            passed = sum(
                self._ended[destination, subscription, member, each].count
                for each in (LifeEvent.REFUSED, LifeEvent.SKIPPED)
            )
            assert skipped[destination, subscription, member] == passed

    def _check_messages(self) -> None:
        """Each message of a send that returned is in exactly one place, or has ended in one; of one that was killed, all or none
        of its messages. Each transfer has an arrival."""
        stays: Counter[str] = Counter()  # text -> arrivals without departures
        arrived, brought = Counter[str](), Counter[str]()
        for destination in QUEUES:
            for (_, member, sequence), text in self._read_texts(destination).items():
                arrived[destination] += 1
                stays[text] += sequence not in self._ended[destination, "-", member, LifeEvent.TRANSFERRED]
            for row in self._rows[destination]:
                if row.event == LifeEvent.TRANSFERRED.value:
                    brought[row.detail.split(":")[0]] += row.messages
        committed = 0
        for destination, texts in self._notes.tried:
            if destination != "orders":
                continue
            counts = {stays.pop(text, 0) for text in texts}
            is_sent = texts[0] in self._notes.sent
            assert counts == {1} or (counts == {0} and not is_sent), f"{texts}: in {counts} places, sent: {is_sent}"
            committed += len(texts) if counts == {1} else 0
        assert not stays, f"messages that no process has sent: {stays}"
        expected = {"orders": committed + brought["orders"], "aside": brought["aside"], "failed": brought["failed"]}
        assert {name: arrived[name] for name in QUEUES} == expected

    def _read_texts(self, destination: str) -> dict[tuple[str, int, int], str]:
        log = self._domain.log(destination)
        found = {}
        for file in log.snapshot.files.values():
            with log.storage.open_input(file.path) as source:
                texts = pq.read_table(source, columns=["text"])["text"].to_pylist()
            found |= {(destination, file.member, file.first + n): text for n, text in enumerate(texts)}
        assert len(found) == sum(log.snapshot.last_sequence(m) for m in log.snapshot.destination.member_ids)
        self._texts |= found
        return found

    def _check_received(self) -> None:
        """What a consumer acknowledged, the application has received, or it expired before; what it got twice was flagged."""
        places = {
            "orders": ("orders", "-"),
            "aside": ("aside", "-"),
            "all": ("prices", "all"),
            "dear": ("prices", "dear"),
        }
        for name, (destination, subscription) in places.items():
            role = f"consume-{name}"
            for (where, whose, member, event), picks in self._ended.items():
                if (where, whose, event) == (destination, subscription, LifeEvent.ACKNOWLEDGED):
                    unseen = [
                        n
                        for n in picks.numbers().tolist()
                        if (member, n) not in self._notes.got[role]
                        and self._texts.get((destination, member, n)) not in self._notes.expiring
                    ]
                    assert not unseen, f"{destination}/{subscription}/{member}: acknowledged, never received: {unseen}"
            doubled = [place for place, times in self._notes.fresh[role].items() if times > 1]
            assert not doubled, f"{destination}/{subscription}: received twice without a flag: {doubled}"

    def _events(self, destination: str, subscription: str, member: int, event: LifeEvent) -> list[EventRow]:
        return [
            row
            for row in self._rows[destination]
            if (row.subscription, row.member, row.event) == (subscription, member, event.value)
        ]


def _ranges(row: EventRow | views.AcknowledgementRow) -> Ranges:
    parts = [part.split("-") for part in row.ranges.split(", ")]
    return Ranges.of(*((int(part[0]), int(part[-1])) for part in parts))
