"""An engine whose answers come late, twice or never: no acknowledged write is lost, none is done twice (S2, S6, S9)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from spark_jms.settings.store import Thresholds
from spark_jms.store import OutcomeUnknownError, Put, StoreFullError
from spark_jms.store.engine.access import RemoteAccess
from spark_jms.store.engine.entry_log import LedgerBatch, OwnershipLostError, Proposal, Verdict
from spark_jms.store.errors import FencedError, StoreClosedError, StoreError
from spark_jms.store.ledger.record import Change, Connected, Prepared, Written
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.directory.overload import PublishedOverload
from spark_jms.testing.domain import wait_until
from tests.unit.store.engine.test_engine import NoEngine, Pair
from tests.unit.store.engine.test_entry_log import entry_log


def test_an_append_sent_again_into_the_same_write_counts_once() -> None:
    """S2: both wait in the queue of the engine."""
    target = entry_log()
    first = Proposal("t", 4, (Prepared("x", (Change("r", 1, (Put("k", b"1"),)),)),))
    shared = target.begin("w")
    proposals = (first, Proposal("t", 4, first.entries, again=True))
    assert tuple(target.propose(proposal, shared) for proposal in proposals) == (Verdict.TAKEN, Verdict.TAKEN)
    assert shared.batch().entries == first.entries


def test_an_append_reaches_the_engine_while_a_reader_waits() -> None:
    """S6: a reader keeps the replica's lock for as long as the engine makes it wait."""
    pair = Pair()
    access = pair.backends[1]._route.access()
    assert isinstance(access, RemoteAccess)
    pair.stores[1].names()
    proposal = Proposal("t", access._replica.place.position, (Connected("late", ""),))
    verdicts: list[Verdict] = []
    appending = threading.Thread(target=lambda: verdicts.append(access.append(proposal)))
    with access._replica.lock:
        appending.start()
        wait_until(lambda: proposal.entries[0] in pair.place.entries)
    appending.join(10)
    assert verdicts == [Verdict.TAKEN]
    pair.close()


def test_an_append_is_kept_once_when_its_client_reconnects() -> None:
    """S2, S6: an engine that is uncertain of its lock refuses a read of another thread, which closes both links."""
    pair = Pair()
    engine = pair.place.published
    assert engine is not None
    other = pair.stores[0].connect().open("o")
    session = pair.stores[1].connect()
    handle = session.open("r")
    entered, go_on, real = threading.Event(), threading.Event(), engine._persistence.append

    def slow(batch: LedgerBatch) -> None:
        entered.set()
        go_on.wait(20)
        real(batch)

    engine._persistence.append = slow  # type: ignore[method-assign]
    threads = [threading.Thread(target=other.commit, args=([Put("a", b"b")],))]
    threads[0].start()
    assert entered.wait(10)
    threads.append(threading.Thread(target=session.prepare, args=("x", {handle: [Put("k", b"v")]})))
    threads[1].start()
    wait_until(lambda: len(engine._group._queue) == 1)
    engine.set_certain(False)
    threads.append(threading.Thread(target=pair.stores[1].peek, args=("r",)))
    threads[2].start()
    wait_until(lambda: len(engine._group._queue) == 2)
    engine.set_certain(True)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert sum(isinstance(entry, Prepared) for entry in pair.place.entries) == 1
    assert pair.stores[0].in_doubt() == {"x": ("r",)}
    pair.close()


def _interrupt_when(ready: threading.Event) -> None:
    """Interrupt the main thread a moment after `ready`."""

    def strike() -> None:
        ready.wait(10)
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=strike).start()


def test_an_interrupted_write_leaves_no_answer_to_the_next_one() -> None:
    """S9: Ctrl-C in a notebook whose engine is in another process."""
    pair = Pair()
    session = pair.stores[1].connect()
    first, second = session.open("r1"), session.open("r2")
    entered, go_on = threading.Event(), threading.Event()

    def fail(batch: LedgerBatch) -> StoreError | None:
        entered.set()
        go_on.wait(10)
        return StoreFullError("full") if "second" in repr(batch.entries) else None

    pair.place.fail = fail
    _interrupt_when(entered)
    with pytest.raises(KeyboardInterrupt):
        first.commit([Put("k", b"first")])
    go_on.set()
    with pytest.raises(StoreFullError):
        second.commit([Put("k", b"second")])
    assert pair.stores[0].peek("r2") == {}
    pair.place.fail = lambda batch: None
    pair.close()


def test_reads_after_an_interrupted_read_are_current() -> None:
    """S9: they do not get the answer to the read before."""
    pair = Pair()
    engine = pair.place.published
    assert engine is not None
    handle = pair.stores[0].connect().open("r")
    handle.commit([Put("n", b"0")])
    assert pair.stores[1].peek("r") == {"n": b"0"}
    engine.set_certain(False)  # it answers after a second, or as soon as it is certain
    asked = threading.Event()
    asked.set()
    _interrupt_when(asked)
    with pytest.raises(KeyboardInterrupt):
        pair.stores[1].peek("r")
    engine.set_certain(True)
    handle.commit([Put("n", b"1")])
    assert pair.stores[1].peek("r") == {"n": b"1"}
    pair.close()


def test_a_write_that_may_be_kept_is_unknown_and_not_busy() -> None:
    """S6: the engine was lost with the write, and there was no other within the limit."""
    pair = Pair()
    handle = pair.stores[1].connect().open("r")
    backend = pair.backends[1]
    pair.clock(backend)

    def crash(batch: LedgerBatch) -> StoreError | None:
        pair.reach(backend, NoEngine)
        return OwnershipLostError("disabled by the test")

    pair.place.crash = crash
    with pytest.raises(OutcomeUnknownError):
        handle.commit([Put("k", b"v")])
    assert any(isinstance(entry, Written) for entry in pair.place.entries)
    pair.place.crash = lambda batch: None
    pair.reach(backend)
    pair.close()


def test_a_late_failure_callback_is_called_at_once(tmp_path: Path) -> None:
    """R15: otherwise the engine would continue to serve regions that another process owns."""

    class Attached:
        index, gone = 0, ""

        def close(self, reason: str = "") -> None:
            pass

    async def run() -> list[StoreError]:
        told: list[StoreError] = []
        published = PublishedOverload(tmp_path, "s", "client")
        instance = StoreInstance(Attached(), "s", 1 << 20, Thresholds(), published)  # type: ignore[arg-type]
        instance._fail(FencedError("another has the regions"))
        instance.on_failure(told.append)
        return told

    assert [type(error) for error in asyncio.run(run())] == [FencedError]


def test_a_closed_loop_leaves_no_caller_waiting() -> None:
    """R15: earlier calls are cancelled, later ones refused."""
    loop, ends = EventLoopThread("test"), []

    async def never() -> None:
        await asyncio.sleep(3600)

    def call() -> None:
        try:
            while True:
                loop.call(asyncio.sleep(0))
        except Exception as error:  # noqa: BLE001
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    loop.close()
    loop.close()
    for thread in threads:
        thread.join(10)
    assert len(ends) == 4
    assert set(ends) <= {"CancelledError", "StoreClosedError"}
    with pytest.raises(StoreClosedError):
        loop.call(never())
