"""Group commit: who is served by whom, and that no interrupt keeps the others waiting (C6)."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from spark_jms.store.errors import OutcomeUnknownError, StoreError
from spark_jms.store.ledger import group
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.group import Drain, GroupCommit, finish
from spark_jms.testing.waiting import wait_until

NO_LEDGER = cast(Transaction, None)


class Place:
    """Serves rounds as a backend does; `pause` is what a write takes."""

    def __init__(self, pause: Callable[[], object] = lambda: None) -> None:
        self.rounds: list[int] = []
        self.leader = 0
        self.pause = pause

    def lead(self, drain: Drain) -> None:
        self.leader = threading.get_ident()
        requests = drain()
        try:
            for request in requests:
                request.run(NO_LEDGER)
            self.pause()
            assert self.leader == threading.get_ident(), "two lead at once"
        except BaseException as error:
            finish(requests, error)
            raise
        self.rounds.append(len(requests))
        finish(requests, None)


def test_what_queues_up_meanwhile_shares_a_write() -> None:
    """C6: the first goes at once, the others together, each with its own result or error."""
    gate = threading.Event()
    place = Place(lambda: gate.wait(10))
    commit = GroupCommit(place.lead)
    results: dict[int, object] = {}

    def write(number: int) -> None:
        def plan(_: Transaction) -> int:
            if number == 3:
                raise ValueError("three")
            return number

        try:
            results[number] = commit.write(plan)
        except ValueError as error:
            results[number] = str(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    threads[0].start()
    wait_until(lambda: place.leader and not commit._queue, what="the first to write")
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(commit._queue) == 5, what="the others to queue up")
    gate.set()
    for thread in threads:
        thread.join(10)
    assert results == {0: 0, 1: 1, 2: 2, 3: "three", 4: 4, 5: 5}
    assert place.rounds == [1, 5]


def test_a_refused_round_is_told_to_all_of_it() -> None:
    """C6: one instance of the error each, and the next round goes on."""
    failing = [StoreError("no")]

    def lead(drain: Drain) -> None:
        finish(drain(), failing.pop() if failing else None)

    commit = GroupCommit(lead)
    with pytest.raises(StoreError, match="no"):
        commit.write(lambda _: 1)
    assert commit.write(lambda _: 1) is None  # this place runs no plan


def test_what_an_interrupted_leader_leaves_behind_is_settled_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: whoever had drained requests and was interrupted before he told them: their outcome is unknown."""
    monkeypatch.setattr(group, "RECHECK_S", 0.01)
    drained, go = threading.Event(), threading.Event()
    rounds: list[int] = []

    def lead(drain: Drain) -> None:
        if not rounds:
            rounds.append(0)
            wait_until(lambda: len(commit._queue) == 2, what="a second request")
            drain()
            drained.set()
            go.wait(10)
            raise KeyboardInterrupt
        requests = drain()
        rounds.append(len(requests))
        finish(requests, None)

    commit = GroupCommit(lead)
    outcomes: list[type[BaseException]] = []

    def write() -> None:
        try:
            commit.write(lambda _: None)
        except BaseException as error:  # noqa: BLE001
            outcomes.append(type(error))

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert drained.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes, key=str) == sorted([KeyboardInterrupt, OutcomeUnknownError], key=str)
    commit.write(lambda _: None)
    assert rounds == [0, 1]


def _interrupt(thread: threading.Thread) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(KeyboardInterrupt))


@pytest.mark.parametrize("seed", range(4))
def test_interrupts_at_any_step_keep_nobody_waiting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: KeyboardInterrupt in writers at random: all others go on, and what was answered was done exactly once."""
    monkeypatch.setattr(group, "RECHECK_S", 0.02)
    chance = random.Random(seed)
    place = Place(lambda: time.sleep(0.0002))
    commit = GroupCommit(place.lead)
    marks = itertools.count()
    done: list[int] = []
    answered: list[int] = []
    odd: list[BaseException] = []
    stop = threading.Event()

    def writer() -> None:
        while not stop.is_set():
            mark = next(marks)

            def plan(_: Transaction, mark: int = mark) -> int:
                done.append(mark)
                return mark

            try:
                if commit.write(plan) == mark:
                    answered.append(mark)
            except (KeyboardInterrupt, OutcomeUnknownError):
                continue
            except BaseException as error:  # noqa: BLE001
                odd.append(error)

    def stubborn() -> None:
        while not stop.is_set():
            try:
                writer()
            except KeyboardInterrupt:  # between two writes
                continue

    threads = [threading.Thread(target=stubborn, daemon=True) for _ in range(6)]
    for thread in threads:
        thread.start()
    for _ in range(400):
        time.sleep(chance.random() * 0.003)
        _interrupt(chance.choice(threads[1:]))  # the first is never interrupted: it must always get on
    seen = len(answered)
    wait_until(lambda: len(answered) > seen + 100, what="writes to go on")
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert not odd
    assert len(set(done)) == len(done), "done twice"
    assert set(answered) <= set(done)


class Turn:
    """A lock that counts who waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.locked = self._lock.locked
        self.waiting = 0

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waiting += 1
            self._lock.acquire()
            self.waiting -= 1

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_in_a_long_round_only_the_first_waits_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: at the lock, which is not fair, the others would learn late that they are finished."""
    looks: list[int] = []
    monkeypatch.setattr(group, "RECHECK_S", 0.005)
    monkeypatch.setattr(GroupCommit, "_is_first", lambda self, request: looks.append(1) or is_first(self, request))
    gate = threading.Event()
    place = Place(lambda: gate.wait(20))
    commit = GroupCommit(place.lead)
    turn = Turn()
    commit._turn = turn  # type: ignore[assignment]
    threads = [threading.Thread(target=commit.write, args=(lambda _: None,)) for _ in range(6)]
    threads[0].start()
    wait_until(lambda: place.leader and not commit._queue, what="the first to write")
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(commit._queue) == 5 and len(looks) > 100, what="everybody to have looked many times")
    assert turn.waiting == 1
    gate.set()
    for thread in threads:
        thread.join(10)
    assert place.rounds == [1, 5]


is_first = GroupCommit._is_first


def test_what_was_interrupted_while_it_queued_up_is_not_done_later() -> None:
    """C6: nobody waits for it any more, and its caller may have asked again."""

    class Interrupting(deque[group.GroupRequest]):
        def append(self, request: group.GroupRequest) -> None:
            super().append(request)
            raise KeyboardInterrupt

    commit = GroupCommit(Place().lead)
    ran: list[str] = []
    commit._queue = Interrupting()
    with pytest.raises(KeyboardInterrupt):
        commit.write(lambda _: ran.append("interrupted"))
    assert not commit._queue
    commit._queue = deque()
    commit.write(lambda _: ran.append("next"))
    assert ran == ["next"]
