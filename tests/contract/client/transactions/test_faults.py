"""What happens to a transaction when a destination, a consumer or a quota fails it: nothing is lost, nothing is half done (T16)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.destinations import drop_destination, pause, resume
from spark_jms.admin.servers import transactions
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.transactions.transaction import Coordinator, Coordinators
from spark_jms.client import Context, Message, TransactedSession
from spark_jms.client.transactions import coordinated_commit
from spark_jms.client.transactions.coordinated_commit import CoordinatedCommit
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.core.limits.quota import MessageUsage, Request
from spark_jms.errors import (
    DestinationReplacedError,
    InvalidDestinationError,
    MemberUnavailableError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of, transaction_of
from tests.harness.domains.quotas import made
from tests.harness.messages.shorthands import send_texts

QUEUE = {"kind": "queue"}
POINTS = ["before", "staged", "admitted"]


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain(orders="queue", audit="queue", prices="queue") as where:
        yield where


def shown(context: Context, destination: str) -> list[str | None]:
    return [message.text for message in context.browser(destination)]


def received(consumer: Any, text: str) -> Message:
    message = consumer.receive(timeout=5)
    assert message is not None
    assert message.text == text
    return message  # type: ignore[no-any-return]


def replaced(root: str, destination: str, *, again: bool = True) -> None:
    """By another process: dropped, and created again."""
    with spark_jms.connect(root, housekeeping=False) as other:
        drop_destination(domain_of(other), records_of(other), destination, force=True)
    if again:
        spark_jms.apply(root, {"destinations": {destination: QUEUE}})


def drops_at(point: str, root: str, monkeypatch: pytest.MonkeyPatch, *, again: bool) -> None:
    """Replaces `audit` before the commit looks at it, or behind one of its steps."""
    if point == "before":
        replaced(root, "audit", again=again)
        return
    name = {"staged": "stage_collected", "admitted": "admit"}[point]
    original, done = getattr(coordinated_commit, name), []

    def step(log: Any, *arguments: Any) -> Any:
        answer = original(log, *arguments)
        if log.name == "audit" and not done:
            done.append(True)
            replaced(root, "audit", again=again)
        return answer

    monkeypatch.setattr(coordinated_commit, name, step)


@pytest.mark.parametrize("again", [True, False], ids=["created again", "gone"])
@pytest.mark.parametrize("point", POINTS[:2])
def test_transaction_to_a_replaced_destination_is_rolled_back(
    root: str, monkeypatch: pytest.MonkeyPatch, point: str, again: bool
) -> None:
    """T16: the session knows the table that was replaced; nothing of the transaction remains, and the next one arrives."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        for text in ("first", "second"):
            send_texts(context, text)
        consumer, audit, prices = session.consumer("orders"), session.producer("audit"), session.producer("prices")
        audit.send(text="made")  # the session knows the table
        prices.send(text="made")
        session.commit()
        received(consumer, "first")
        audit.send(text="x")
        prices.send(text="x")
        drops_at(point, root, monkeypatch, again=again)
        with pytest.raises(TransactionRolledBackException) as caught:
            session.commit()
        assert isinstance(caught.value.__cause__, DestinationReplacedError | InvalidDestinationError)
        monkeypatch.undo()
        assert shown(context, "prices") == ["made"]
        assert not transactions(domain_of(context), records_of(context))
        assert received(consumer, "first").redelivered
        if again:
            audit.send(text="x")
            session.commit()
            assert (shown(context, "orders"), shown(context, "audit")) == (["second"], ["x"])


def test_send_behind_the_replacement_is_not_lost(root: str) -> None:
    """T16: the session sends when the destination has been created again, before it knows; the exception is the promised one."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        audit, prices = session.producer("audit"), session.producer("prices")
        audit.send(text="made")
        session.commit()
        replaced(root, "audit")
        for arrives in (False, True):
            audit.send(text="x")
            prices.send(text="x")
            if arrives:
                session.commit()
            else:
                with pytest.raises(TransactionRolledBackException, match="created again"):
                    session.commit()
        assert (shown(context, "audit"), shown(context, "prices")) == (["x"], ["x"])


class Unreachable:
    """The record sets of one destination cannot be changed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, destination: str, *steps: str) -> None:
        self.fails = True
        for step in steps:
            original = getattr(Subscriber, step)

            def fail(own: Subscriber, *arguments: Any, _original: Any = original, **named: Any) -> Any:
                if self.fails and own.destination == destination:
                    raise MemberUnavailableError(f"the server of {destination} is away")
                return _original(own, *arguments, **named)

            monkeypatch.setattr(Subscriber, step, fail)


@pytest.mark.parametrize("away", ["orders", "prices"])
@pytest.mark.parametrize("by", ["rollback", "time-out", "commit"])
def test_a_rollback_that_fails_for_one_consumer_is_whole(
    root: str, monkeypatch: pytest.MonkeyPatch, away: str, by: str
) -> None:
    """T16: the server of one of two consumers is away while the transaction ends. Nothing of it slips into the next commit, and
    all its messages come again."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        for destination in ("orders", "prices"):
            send_texts(context, "a", to=destination)
        consumers = {name: session.consumer(name) for name in ("orders", "prices")}
        for consumer in consumers.values():
            received(consumer, "a")
        session.producer("audit").send(text="result")
        unreachable = Unreachable(monkeypatch, away, "release", "pledge")
        end(session, by, monkeypatch)
        if by == "time-out":
            with pytest.raises(TransactionRolledBackException, match="took longer"):
                session.commit()
        session.commit()  # of nothing
        unreachable.fails = False
        assert shown(context, "audit") == []
        for consumer in consumers.values():
            assert received(consumer, "a").redelivered
        session.producer("audit").send(text="result")
        session.commit()
        assert [shown(context, name) for name in ("orders", "prices", "audit")] == [[], [], ["result"]]


def end(session: TransactedSession, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if by == "rollback":
        with pytest.raises(MemberUnavailableError):
            session.rollback()
    elif by == "commit":
        with pytest.raises(TransactionRolledBackException, match="away"):
            session.commit()
    else:
        transaction = transaction_of(session)
        transaction.end_late()
        began = transaction.monotonic_s()
        monkeypatch.setattr(transaction, "monotonic_s", lambda: began + 4_000)
        with suppress(MemberUnavailableError):  # or the context's background thread is first
            session.end_late()
        wait_until(lambda: transaction.timed_out)


def test_what_was_not_pledged_comes_again(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: the server goes away between the pledges and stays away during the rollback; no message stays claimed for ever."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        send_texts(context, "a")
        send_texts(context, "b", to="prices")
        orders, prices = session.consumer("orders"), session.consumer("prices")
        received(orders, "a")
        received(prices, "b")
        unreachable = Unreachable(monkeypatch, "prices", "pledge", "release", "end_pledges")
        with pytest.raises(TransactionRolledBackException, match="away"):
            session.commit()
        unreachable.fails = False
        assert received(orders, "a").redelivered
        assert received(prices, "b").redelivered
        session.commit()
        assert (shown(context, "orders"), shown(context, "prices")) == ([], [])


def grouped(context: Context, *texts: str) -> None:
    context.producer("orders").send_many({"text": text, "group_id": "unit"} for text in texts)


def paused_at_completion(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """`audit` is paused between the decision and the append of the next commit, and stays so."""
    original = CoordinatedCommit.complete

    def paused(self: Any, *arguments: Any) -> None:
        monkeypatch.undo()
        pause(domain_of(context), "audit", [INSERTION])
        original(self, *arguments)

    monkeypatch.setattr(CoordinatedCommit, "complete", paused)


@pytest.mark.parametrize("own", [True, False], ids=["the same session", "another process"])
def test_order_of_a_unit_goes_through_transactions(root: str, monkeypatch: pytest.MonkeyPatch, own: bool) -> None:
    """T16, T10: a decided transaction's target is paused; the next message of the unit waits until the target has what the
    transaction made of the one before. Messages of other units do not wait, and nothing is delivered twice."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        grouped(context, "A1", "A2")
        context.producer("orders").send(text="free")
        consumer = session.consumer("orders")
        received(consumer, "A1")
        session.producer("audit").send(text="O1")
        session.producer("prices").send(text="P1")
        paused_at_completion(context, monkeypatch)
        with pytest.raises(TransactionUnfinishedError, match="audit"):
            session.commit()
        assert shown(context, "prices") == ["P1"]
        with spark_jms.connect(root, housekeeping=False) as other_context, other_context.transacted_session() as other:
            next_session = session if own else other
            next_consumer = consumer if own else other.consumer("orders")
            if not own:
                consumer.close()
            received(next_consumer, "free")
            assert next_consumer.receive(timeout=0.3) is None
            next_session.commit()
            assert Coordinators(domain_of(context), records_of(context)).recover()  # it waits
            assert next_consumer.receive(timeout=0.3) is None
            resume(domain_of(context), "audit", [INSERTION])
            Coordinators(domain_of(context), records_of(context)).recover()
            assert shown(context, "audit") == ["O1"]
            received(next_consumer, "A2")
            next_session.producer("audit").send(text="O2")
            next_session.commit()
            assert (shown(context, "audit"), shown(context, "orders")) == (["O1", "O2"], [])


def test_a_blocked_target_holds_no_unit_for_ever(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: a staged file was deleted by hand, so its target can never get it; the transaction says so, and the unit goes on."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        grouped(context, "A1", "A2")
        consumer = session.consumer("orders")
        received(consumer, "A1")
        session.producer("audit").send(text="O1")
        session.producer("prices").send(text="P1")
        paused_at_completion(context, monkeypatch)
        with pytest.raises(TransactionUnfinishedError, match="audit"):
            session.commit()
        storage = domain_of(context).log("audit").storage
        for file in storage.list(""):
            if file.path.endswith(".parquet"):
                storage.delete(file.path)
        assert any("blocked" in problem for problem in Coordinators(domain_of(context), records_of(context)).recover())
        received(consumer, "A2")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[str]:
    """`orders` and `audit` share a quota of five messages, whose senders wait in line."""
    made(str(tmp_path), {"messagesMaximum": 5}, audit={"kind": "queue", "quota": "small"}, source=QUEUE)
    yield str(tmp_path)
    MemoryStore.forget(f"quotas-{tmp_path.name}")


def test_a_refused_transaction_keeps_no_place_before_its_retry(small: str) -> None:
    """T16, T1: it was rolled back for want of room; once the quota is empty, its retry and other producers get room at once."""
    with spark_jms.connect(small, housekeeping=False) as context, context.transacted_session() as session:
        context.producer("orders").send_many([{"text": "x"}] * 5)
        producers = [
            session.producer(name, send_timeout=timeout) for name in ("orders", "free") for timeout in (0, 0.2)
        ]
        for _ in range(3):
            for producer in producers:
                producer.send(text="y")
            with pytest.raises(TransactionRolledBackException, match="no room"):
                session.commit()
        with context.consumer("orders") as consumer:
            for _ in range(5):
                received(consumer, "x").acknowledge()
        context.producer("orders", send_timeout=0).send(text="z")
        for producer in producers:
            producer.send(text="y")
        session.commit()
        assert shown(context, "orders") == ["z", "y", "y"]


def test_a_decided_transaction_uses_the_room_its_dead_owner_reserved(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, T1: the owner died behind the decision, and dead senders wait in line before it. Whichever process completes it uses
    the reservation, at once, also where the maximum was lowered."""
    with spark_jms.connect(small, housekeeping=False) as context, context.transacted_session() as session:
        context.producer("orders").send_many([{"text": "x"}] * 3)
        session.producer("orders").send(text="result")
        session.producer("free").send(text="result")
        dies_at_decision(session, monkeypatch)
        a_completer_dies(context)
        made(small, {"messagesMaximum": 2}, audit={"kind": "queue", "quota": "small"}, source=QUEUE)
        with spark_jms.connect(small, housekeeping=False) as other:
            assert Coordinators(domain_of(other), records_of(other)).recover() == ()
            assert shown(other, "orders") == ["x", "x", "x", "result"]


def dies_at_decision(session: TransactedSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of this commit is dead once it is decided."""
    decide = Coordinator.decide

    def dies(self: Coordinator, *arguments: Any) -> None:
        decide(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Coordinator, "decide", dies)
        with pytest.raises(KeyboardInterrupt):
            session.commit()


def a_completer_dies(context: Context) -> None:
    """Behind its own reservation of the room that the owner had reserved; another dead sender waits in line before it."""
    quotas = domain_of(context).quotas
    limit = quotas.limit("small")
    ledger = quotas.ledger("small", limit, "orders")
    (owned,) = ledger.read().state.reservations
    for change in (
        lambda state: state.wait(Request("dead", "orders", MessageUsage(2, 0), "dead"), 10**15),
        lambda state: state.grant(owned.request, limit, 10**15),
    ):
        entry = ledger.read()
        assert ledger.append(entry, change(entry.state.successor(1)), 1, "by a process that dies")


def test_one_transaction_that_fails_does_not_stop_the_others(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: recovery completes every transaction but the one that fails in a way that was not foreseen, which it names."""
    with spark_jms.connect(root, housekeeping=False) as context:
        with context.transacted_session() as session, context.transacted_session() as another:
            for text, one in (("a", session), ("b", another)):
                one.producer("audit").send(text=text)
                one.producer("prices").send(text=text)
            dies_at_decision(session, monkeypatch)
            with monkeypatch.context() as patch:
                patch.setattr(Coordinators, "complete", lambda _, one: ("not now",) if one.state.open else ())
                dies_at_decision(another, monkeypatch)
        coordinators = Coordinators(domain_of(context), records_of(context))
        complete, first = Coordinators.complete, []

        def broken(self: Coordinators, coordinator: Coordinator) -> tuple[str, ...]:
            first.append(coordinator.record)
            if coordinator.record == first[0]:
                raise KeyError("unforeseen")
            return complete(self, coordinator)

        monkeypatch.setattr(Coordinators, "complete", broken)
        (problem,) = coordinators.recover()
        with context.transacted_session() as session:  # takes another coordinator
            session.producer("orders").send(text="c")
            session.producer("prices").send(text="c")
            session.commit()
        monkeypatch.undo()
        assert problem == f"{first[0]}: KeyError: 'unforeseen'"
        assert len(shown(context, "audit")) == 1
        assert not coordinators.recover()
        assert sorted(map(str, shown(context, "audit"))) == ["a", "b"]
