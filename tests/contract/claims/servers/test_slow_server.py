"""A server whose store answers, but too late for its users (D4): the real keepers and consumers, on file stores that are delayed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jms.claims.consumers import branches
from spark_jms.claims.servers import stores
from spark_jms.claims.servers.stores import sampled_effort
from spark_jms.core.destinations import servers
from spark_jms.core.destinations.servers import HOLD_EFFORT, RETURN_EFFORT
from spark_jms.store import Store, StoreFullError, open_store
from spark_jms.store.ledger.backend import ChangeAnswer, ChangeRequest
from spark_jms.store.ledger.rules import run_change
from spark_jms.store.ledger.store import LedgerStore
from spark_jms.store.testing import backend_of
from tests.harness.domains.servers import applied
from tests.harness.messages.sender_and_query import SenderAndQuery

MODULE: dict[str, Any] = {
    "servers": {name: {"store": "file", "lease": "2 s"} for name in ("a", "b")},
    "destinations": {"orders": {"kind": "distributed-queue", "servers": ["a", "b"]}},
}
ON_A, ON_B = 0, 1


class Trouble:
    """Of the store of server a: how long its reads and writes take, and what its writes raise."""

    def __init__(self) -> None:
        self.read_s = self.write_s = 0.0
        self.error: Exception | None = None

    def end(self) -> None:
        self.__init__()  # type: ignore[misc]


class TroubledBackend:
    """Beside a real one."""

    def __init__(self, backend: Any, trouble: Trouble) -> None:
        self._backend, self._trouble = backend, trouble

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def read(self, question: Callable[[Any], Any]) -> Any:
        time.sleep(self._trouble.read_s)
        return self._backend.read(question)

    def write(self, plan: Callable[[Any], Any]) -> Any:
        time.sleep(self._trouble.write_s)
        if self._trouble.error is not None:
            raise self._trouble.error
        return self._backend.write(plan)

    def change(self, request: ChangeRequest) -> ChangeAnswer:
        return self.write(lambda transaction: run_change(request, transaction, self._backend.alive))


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    """Consumers wait half as long as usual, and the pause between samples is short."""
    made = Trouble()

    def opened(uri: str, **options: Any) -> Store:
        store = open_store(uri, **options)
        if "/stores/a" in uri:
            return LedgerStore(TroubledBackend(backend_of(store), made))  # type: ignore[arg-type]
        return store

    monkeypatch.setattr(stores, "open_store", opened)
    monkeypatch.setattr(branches, "ANSWER_S", 1.0)
    monkeypatch.setattr(branches, "WRITE_S", 2.5)
    monkeypatch.setattr(servers, "READ_MS", 1_000.0)
    monkeypatch.setattr(servers, "WRITE_MS", 2_500.0)
    monkeypatch.setattr(servers, "_LONGEST_PAUSE_MS", 1_000.0)
    return made


@pytest.fixture
def run(tmp_path: Path, trouble: Trouble) -> Iterator[SenderAndQuery]:
    made = SenderAndQuery(applied(tmp_path, MODULE))
    made.until(lambda: made.received[ON_A] > 0 and made.received[ON_B] > 0, "both servers deliver")
    yield made
    trouble.end()
    made.close()


TROUBLES: dict[str, dict[str, Any]] = {
    "slow writes": {"write_s": 3.0},
    "slow reads": {"read_s": 0.5},
    "writes fail": {"error": StoreFullError("no space left")},
}


@pytest.mark.parametrize("kind", TROUBLES)
def test_server_that_answers_and_cannot_deliver_gets_no_messages(
    run: SenderAndQuery, trouble: Trouble, kind: str
) -> None:
    """D4: its store answers each question within the time that renews a lease, but nobody can receive from it. So its server goes
    down; from then on nothing is sent to it, and what is sent elsewhere is delivered. It stays down while the trouble lasts, and is
    up again afterwards, with the messages that waited."""
    vars(trouble).update(TROUBLES[kind])
    run.until(lambda: run.down() == {"a"}, "a is down")
    there, term = run.table.refresh().last_sequence(ON_A), run.domain.terms.newest()["a"].term
    elsewhere = run.sent[ON_B]
    begun_s = time.monotonic()
    run.until(
        lambda: run.sent[ON_B] >= elsewhere + 20 and time.monotonic() - begun_s >= 3.0, "messages of the other server"
    )
    run.until(lambda: run.received[ON_B] >= elsewhere + 20, "none of them waits")
    assert run.table.refresh().last_sequence(ON_A) == there, "a message was sent to a server that is down"
    assert run.domain.terms.newest()["a"].term == term, "the lease flapped"
    trouble.end()
    run.until(lambda: not run.down(), "a is up")
    run.until(lambda: run.table.refresh().last_sequence(ON_A) > there, "messages go there again")
    sent = Counter(run.sent)
    run.until(lambda: run.received >= sent, "everything sent is delivered")


def test_server_that_is_slow_and_delivers_stays_up(
    run: SenderAndQuery, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D4: a delay that consumers can wait for changes nothing, and nothing is measured."""
    trouble.read_s, trouble.write_s = 0.05, 0.3
    taken: list[Store] = []
    monkeypatch.setattr(stores, "sampled_effort", lambda store: taken.append(store) or sampled_effort(store))
    before = run.received[ON_A]
    run.until(lambda: run.received[ON_A] >= before + 5, "a delivers")
    assert not run.down()
    assert not taken


def test_sample_costs_as_much_as_a_delivery(run: SenderAndQuery, trouble: Trouble) -> None:
    """D4: where a delivery takes too long, a sample says so; a fast store returns."""
    store = run.stores.store("a")  # type: ignore[attr-defined]
    assert sampled_effort(store) < RETURN_EFFORT
    trouble.read_s = 0.35
    assert sampled_effort(store) > HOLD_EFFORT
    trouble.read_s, trouble.write_s = 0.0, 1.1
    assert sampled_effort(store) > HOLD_EFFORT
