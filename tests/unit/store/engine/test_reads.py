"""An engine answers reads from its memory only while it can prove that it owns the store (C9, S4, S6)."""

from __future__ import annotations

import pytest

from spark_jms.store.engine import connections
from spark_jms.store.engine.entry_log import LedgerBatch, OwnershipLostError
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import RegionUnavailableError
from spark_jms.store.ledger.codec import encode
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Connected, Ended
from spark_jms.store.processes import LEASE_MS, START_WAIT_MS, ReadLease
from spark_jms.store.testing import MemoryPersistence, SharedMemory


class SteppedClock:
    def __init__(self) -> None:
        self.ms = 1_000.0

    def __call__(self) -> float:
        return self.ms


def test_a_read_needs_a_proof_that_the_engine_owns_the_store() -> None:
    """C9, S6: one proof lasts for LEASE_MS from the moment at which it was asked for, and a kept write is one."""
    place, clock = SharedMemory(), SteppedClock()
    server = Server(MemoryPersistence(place), session_timeout_ms=5_000, lease=ReadLease(clock))
    try:
        for _ in range(5):
            server.look(lambda ledger: ledger.sessions)
        assert place.proof_count == 1
        clock.ms += LEASE_MS - 1
        server.look(lambda ledger: ledger.sessions)
        assert place.proof_count == 1
        clock.ms += 1
        server.look(lambda ledger: ledger.sessions)
        assert place.proof_count == 2
        clock.ms += LEASE_MS
        server.write(lambda shared: shared.do(Connected("s", "")))
        server.look(lambda ledger: ledger.sessions)
        assert place.proof_count == 2
        clock.ms += LEASE_MS
        assert isinstance(server.answer("c", connections.Fetch("", 0)), connections.Paged)
        assert place.proof_count == 3
    finally:
        server.close()


@pytest.mark.parametrize("how", ["look", "fetch", "plan", "refused append"])
def test_an_engine_that_was_replaced_answers_no_read(how: str) -> None:
    """C9, S4, S6: it was stopped, another process became the engine, and it does not know yet."""
    place, clock = SharedMemory(), SteppedClock()
    server = Server(MemoryPersistence(place), session_timeout_ms=5_000, lease=ReadLease(clock))
    server.write(lambda shared: shared.do(Connected("s", "")))
    place.owner = "another"
    clock.ms += LEASE_MS
    try:
        if how == "look":
            with pytest.raises(OwnershipLostError):
                server.look(lambda ledger: dict(ledger.sessions))
        elif how == "plan":
            with pytest.raises(OwnershipLostError):
                server.write(lambda shared: dict(shared.ledger.sessions))
        elif how == "fetch":
            assert isinstance(server.answer("c", connections.Fetch("", 0)), connections.Refusal)
        else:
            stale = connections.Append("", 0, "t", 0, False, encode([Ended(("unknown",)), Connected("s", "")]))
            assert isinstance(server.answer("c", stale), connections.Refusal)
        assert "another owns the memory" in server.gone
    finally:
        server.close()


def test_an_answer_made_before_the_process_was_stopped_needs_a_proof_after_it() -> None:
    """C9: it stopped between reading its ledger and returning the answer."""
    place, clock = SharedMemory(), SteppedClock()
    server = Server(MemoryPersistence(place), session_timeout_ms=5_000, lease=ReadLease(clock))

    def stopped(ledger: Ledger) -> int:
        clock.ms += 10 * LEASE_MS
        place.owner = "another"
        return len(ledger.sessions)

    try:
        server.look(lambda ledger: ledger.sessions)
        with pytest.raises(OwnershipLostError):
            server.look(stopped)
    finally:
        server.close()


class SlowMemory(MemoryPersistence):
    """The process is stopped after its memory has confirmed something, and before it has the answer."""

    def __init__(self, place: SharedMemory, clock: SteppedClock) -> None:
        super().__init__(place)
        self._memory, self._clock = place, clock

    def _stopped(self) -> None:
        self._clock.ms += LEASE_MS
        self._memory.owner = "another"

    def prove(self) -> None:
        super().prove()
        self._stopped()

    def append(self, batch: LedgerBatch) -> None:
        super().append(batch)
        self._stopped()


@pytest.mark.parametrize("proof", ["read", "write"])
def test_lease_begins_at_the_question(proof: str) -> None:
    """C9, S4, S6: a process that is stopped between question and answer has no lease when it wakes."""
    place, clock = SharedMemory(), SteppedClock()
    server = Server(SlowMemory(place, clock), session_timeout_ms=5_000, lease=ReadLease(clock))
    try:
        if proof == "read":
            server.look(lambda ledger: ledger.sessions)
        else:
            server.write(lambda shared: shared.do(Connected("s", "")))
        with pytest.raises(OwnershipLostError):
            server.look(lambda ledger: ledger.sessions)
    finally:
        server.close()


def test_an_engine_that_cannot_be_proved_refuses_the_read_and_stays() -> None:
    """C9: the answer may come later; meanwhile readers are told to ask again."""

    class Doubtful(MemoryPersistence):
        doubt = True

        def prove(self) -> None:
            if self.doubt:
                raise RegionUnavailableError("its daemon cannot tell")
            super().prove()

    persistence = Doubtful(SharedMemory())
    server = Server(persistence, session_timeout_ms=5_000)
    try:
        with pytest.raises(OwnershipLostError, match="not certain of its ownership"):
            server.look(lambda ledger: ledger.sessions)
        assert not server.gone
        persistence.doubt = False
        assert server.look(lambda ledger: dict(ledger.sessions)) == {}
    finally:
        server.close()


class Awaited(SteppedClock):
    """Time passes only while a server sleeps."""

    def sleep(self, seconds: float) -> None:
        self.ms += seconds * 1000.0


@pytest.mark.parametrize(("had_owner", "waits_ms"), [(True, START_WAIT_MS), (False, 0.0)])
def test_a_new_engine_begins_when_the_proofs_of_the_old_one_have_expired(
    had_owner: bool, waits_ms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9: and at once when there was none."""
    clock = Awaited()
    monkeypatch.setattr("spark_jms.store.engine.server.time.sleep", clock.sleep)
    server = Server(MemoryPersistence(SharedMemory(abrupt=had_owner)), session_timeout_ms=5_000, lease=ReadLease(clock))
    try:
        assert clock.ms == 1_000.0 + waits_ms
    finally:
        server.close()


def test_no_read_shows_a_write_that_a_later_read_of_the_old_engine_does_not_show(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C9: the old engine's write was kept, and it had no answer. The new one shows the write, the old one still has a proof."""
    place, clock = SharedMemory(abrupt=True), Awaited()
    monkeypatch.setattr("spark_jms.store.engine.server.time.sleep", clock.sleep)
    old = Server(MemoryPersistence(place), session_timeout_ms=5_000, lease=ReadLease(clock))
    new = None
    try:
        old.look(lambda ledger: ledger.sessions)
        place.entries.append(Connected("s", ""))
        new = Server(MemoryPersistence(place), session_timeout_ms=5_000, lease=ReadLease(clock))
        assert "s" in new.look(lambda ledger: dict(ledger.sessions))
        with pytest.raises(OwnershipLostError):
            old.look(lambda ledger: dict(ledger.sessions))
    finally:
        for server in (old, new):
            if server is not None:
                server.close()
