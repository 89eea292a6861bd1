"""Interrupts (Ctrl-C) and faults in the middle of a step of a store: memory never gets ahead of what is durable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store import MemoryStore, OutcomeUnknownError, Put, StoreBusyError
from spark_jms.store.disk import Disk
from spark_jms.store.engine.connections import LinkLostError
from spark_jms.store.errors import StoreWriteError
from spark_jms.store.file import store as file_store
from spark_jms.store.file.store import FileBackend
from spark_jms.store.ledger import group_commit
from spark_jms.store.ledger.backend import Transaction
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Connected
from spark_jms.store.ledger.store import MemoryBackend
from tests.unit.store.engine.test_engine import NoEngine, Pair


def interrupted_once(function: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """The function, interrupted by Ctrl-C after one of its calls."""
    calls = [0]

    def around(*args: Any, **named: Any) -> Any:
        result = function(*args, **named)
        calls[0] += 1
        if calls[0] == after + 1:
            raise KeyboardInterrupt
        return result

    return around


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_twice_while_a_write_fails_leaves_no_phantom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: plans have changed the ledger, nothing is written, and even finishing the requests is interrupted."""
    one, other = FileBackend(str(tmp_path)), FileBackend(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(one._journal, "append", interrupt)
        patch.setattr(file_store, "finish", interrupted_once(group_commit.finish))
        with pytest.raises(KeyboardInterrupt):
            one.write(lambda transaction: transaction.do(Connected("phantom", "")))
    assert "phantom" not in one.read(lambda ledger: set(ledger.sessions))
    one.write(lambda transaction: transaction.do(Connected("real", "")))
    for backend in (one, other):
        assert backend.read(lambda ledger: set(ledger.sessions)) == {"real"}
        backend.release()


def test_ctrl_c_while_a_reader_follows_the_journal_applies_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9: the next read applies the remaining entries only."""
    writing, reading = FileBackend(str(tmp_path)), FileBackend(str(tmp_path))
    assert not reading.read(lambda ledger: set(ledger.sessions))
    names = {"a", "b", "c"}
    writing.write(lambda transaction: [transaction.do(Connected(name, "")) for name in sorted(names)])
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "apply", interrupted_once(Ledger.apply, after=1))
        with pytest.raises(KeyboardInterrupt):
            reading.read(lambda ledger: set(ledger.sessions))
    for backend in (reading, writing):
        assert backend.read(lambda ledger: set(ledger.sessions)) == names
        backend.release()


def test_a_lock_whose_hint_cannot_be_written_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: the disk fails after the operating system has granted the lock; other processes need not wait."""
    disk = Disk()
    one, other = FileBackend(str(tmp_path), disk=disk), FileBackend(str(tmp_path))

    def failing(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "pwrite", failing)
        with pytest.raises(StoreWriteError, match="Input/output"):
            one.write(lambda _: None)
    assert other._lock._try_lock()
    other._lock.release(False)
    for backend in (one, other):
        backend.release()


def test_ctrl_c_while_a_replica_applies_a_page_restarts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: the replica of an engine in another process starts from a snapshot and is right again."""
    pair = Pair()
    near, far = (store.connect() for store in pair.stores)
    handle = near.open("r")
    assert pair.stores[1].peek("r") == {}
    for number in range(3):
        handle.commit([Put(str(number), b"")])
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "apply", interrupted_once(Ledger.apply, after=1))
        with pytest.raises(KeyboardInterrupt):
            pair.stores[1].peek("r")
    assert pair.backends[1]._route._replica.place.position == 0
    assert set(pair.stores[1].peek("r")) == {"0", "1", "2"}
    far.open("other").commit([Put("k", b"v")])
    assert pair.stores[0].peek("other") == {"k": b"v"}
    pair.close()


def test_a_plan_that_loses_the_engine_gets_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """S2: when there is no other engine, the internal error does not reach the caller."""
    pair = Pair()
    backend = pair.backends[1]
    pair.clock(backend)
    pair.reach(backend, NoEngine)

    def plan(_: Transaction) -> None:
        raise LinkLostError("gone while it asked who is alive")

    with pytest.raises(StoreBusyError, match="no engine of the store answered"):
        backend.write(plan)
    pair.backends[1]._route.finder = pair.backends[0]._route.finder
    pair.close()


@pytest.mark.parametrize("written", [True, False])
def test_opening_with_an_unknown_outcome_is_written_again(monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """C9: whether it was kept or not, this session has the record set then; a store that never knows is named."""
    store, original, lost = MemoryStore(), MemoryBackend.write, [1, 2]

    def write(self: MemoryBackend, plan: Callable[[Transaction], Any]) -> Any:
        if written or not lost[0]:
            result = original(self, plan)
        if lost[0]:
            lost[0] -= 1
            raise OutcomeUnknownError("no answer")
        return result

    with store, store.connect() as session:
        monkeypatch.setattr(MemoryBackend, "write", write)
        handle = session.open("r")
        handle.commit([Put("k", b"v")])
        assert (handle.epoch, store.peek("r")) == (1, {"k": b"v"})
        lost[0] = lost[1]
        with pytest.raises(OutcomeUnknownError):
            session.open("s")
        lost[0] = 0
        assert session.open("s").epoch == 1
