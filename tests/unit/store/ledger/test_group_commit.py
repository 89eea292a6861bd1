"""Group commit: which leader serves which requests, and that no interrupt leaves a caller waiting (C6)."""

from __future__ import annotations

import ctypes
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

import pytest

from spark_jms.store.errors import OutcomeUnknownError, StoreError
from spark_jms.store.ledger import group_commit
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, finish
from spark_jms.testing.domain import wait_until

NO_LEDGER = cast(Transaction, None)


class Place:
    """Serves requests as a backend does; `pause` is the time of a write."""

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


def run_behind_the_first(
    threads: list[threading.Thread], place: Place, commit: GroupCommit, gate: threading.Event
) -> None:
    """The first thread writes, and waits for the gate; the gate opens once all others have queued up."""
    threads[0].start()
    wait_until(lambda: place.leader and not commit._queue, what="the first to write")
    for thread in threads[1:]:
        thread.start()
    wait_until(lambda: len(commit._queue) == len(threads) - 1, what="the others to queue up")
    gate.set()
    for thread in threads:
        thread.join(10)


def test_requests_that_queue_up_during_a_write_share_the_next() -> None:
    """C6: the first is written at once, the others together, each with its own result or error."""
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
    run_behind_the_first(threads, place, commit, gate)
    assert results == {0: 0, 1: 1, 2: 2, 3: "three", 4: 4, 5: 5}
    assert place.rounds == [1, 5]


def test_leader_gathers_the_threads_that_the_write_before_served() -> None:
    """C6: threads that write one request after the other share all writes instead of taking turns in halves."""
    gate = threading.Event()
    place = Place(lambda: gate.wait(10))
    commit = GroupCommit(place.lead, gather_s=10)

    def work(times: int) -> None:
        for _ in range(times):
            commit.write(lambda _: None)

    threads = [threading.Thread(target=work, args=(times,)) for times in (21, 20, 20, 20)]
    run_behind_the_first(threads, place, commit, gate)
    assert place.rounds == [1, *[4] * 20]


def test_thread_that_writes_alone_does_not_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: and the last of several threads waits once at most."""
    waits: list[float] = []
    monkeypatch.setattr(group_commit.time, "sleep", waits.append)
    place = Place()
    commit = GroupCommit(place.lead, gather_s=5)
    for _ in range(20):
        commit.write(lambda _: None)
    assert (place.rounds, waits) == ([1] * 20, [])


def test_plans_of_one_thread_are_written_together() -> None:
    """C6, T11: in their order, each with its own result or error; the next write does not wait for as many again."""
    place = Place()
    commit = GroupCommit(place.lead, gather_s=60)

    def plan(number: int) -> Callable[[Transaction], int]:
        return lambda _: 10 // number

    calls = commit.write_all([plan(number) for number in (5, 0, 2)])
    assert [call.result for call in calls] == [2, None, 5]
    assert [type(call.error) for call in calls] == [type(None), ZeroDivisionError, type(None)]
    assert commit.write(plan(1)) == 10
    assert place.rounds == [3, 1]


def test_every_request_of_a_refused_write_gets_an_error_of_its_own() -> None:
    """C6: and the next write succeeds."""
    failing = [StoreError("no")]

    def lead(drain: Drain) -> None:
        finish(drain(), failing.pop() if failing else None)

    commit = GroupCommit(lead)
    with pytest.raises(StoreError, match="no"):
        commit.write(lambda _: 1)
    assert commit.write(lambda _: 1) is None  # this leader runs no plan


def test_requests_that_an_interrupted_leader_drained_are_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: their outcome is unknown."""
    monkeypatch.setattr(group_commit, "RECHECK_S", 0.01)
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
def test_interrupts_at_any_step_leave_no_caller_waiting(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: KeyboardInterrupt in random writers: the others continue, and every answered plan ran exactly once."""
    monkeypatch.setattr(group_commit, "RECHECK_S", 0.02)
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
        _interrupt(chance.choice(threads[1:]))  # the first is never interrupted: it must always make progress
    seen = len(answered)
    wait_until(lambda: len(answered) > seen + 100, what="writes to continue")
    stop.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert not odd
    assert len(set(done)) == len(done), "done twice"
    assert set(answered) <= set(done)


class Turn:
    """A lock that counts its waiting threads."""

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


def test_during_a_long_write_only_the_first_waits_for_the_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: at the lock, which is not fair, the others would learn late that they are finished."""
    looks: list[int] = []
    monkeypatch.setattr(group_commit, "RECHECK_S", 0.005)
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


def test_a_request_interrupted_while_it_queued_up_never_runs() -> None:
    """C6: its caller has left, and may have asked again."""

    class Interrupting(deque[group_commit.GroupRequest]):
        def extend(self, requests: Iterable[group_commit.GroupRequest]) -> None:
            super().extend(requests)
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
