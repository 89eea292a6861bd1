"""Transacted sessions on each store: all or nothing over several destinations, rolled back, completed after a crash (T16)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin.quota import quotas
from spark_jms.admin.servers import DAMAGED, transactions
from spark_jms.claims.records.members import Members
from spark_jms.claims.records.shared import members_kind
from spark_jms.claims.servers.stores import home_of
from spark_jms.claims.transactions import transaction as claims_transaction
from spark_jms.claims.transactions.transaction import Coordinator, Coordinators, open_transactions
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context, Message
from spark_jms.client.receiving.delivery import TransactedDelivery
from spark_jms.client.transactions import coordinated_commit
from spark_jms.client.transactions.coordinated_commit import CoordinatedCommit
from spark_jms.core.transactions.transaction import COORDINATOR_KEY, COORDINATORS_PREFIX, coordinator_record
from spark_jms.errors import (
    ClosedError,
    CommitOutcomeUnknownError,
    ConsumerClosedException,
    IllegalStateException,
    MessageSizeError,
    OptionError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending import transfer
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.store import OutcomeUnknownError, Put, StoreBusyError
from spark_jms.store.ledger.store import MemoryStore
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import coordinators_of, domain_of, records_of, transaction_of
from tests.harness.domains.quotas import made
from tests.harness.domains.transactions import pause_of, received, shown
from tests.harness.messages.shorthands import send_texts


def data_files(context: Context, destination: str) -> set[str]:
    return {
        file.path for file in domain_of(context).log(destination).storage.list("") if file.path.endswith(".parquet")
    }


def test_commit_sends_to_several_destinations_and_acknowledges(context: Context) -> None:
    """T16: a message is taken from one queue, and two are sent to others: none is seen before the commit, all after it."""
    send_texts(context, "a", "b")
    with context.transacted_session() as session, context.consumer("prices", subscription="s") as prices:
        consumer = session.consumer("orders")
        assert received(consumer).text == "a"
        sent = session.producer("spread").send(text="x")
        session.producer("prices").send_many([{"text": "y"}, {"text": "z"}])
        assert sent.message_id
        assert shown(context, "spread") == []
        assert prices.receive(0) is None
        session.commit()
        assert [message.message_id for message in context.browser("spread")] == [sent.message_id]
        assert [received(prices).text for _ in range(2)] == ["y", "z"]
        assert consumer.statistics().acknowledged == 1
        assert shown(context, "orders") == ["b"]
        assert received(consumer).text == "b"
        session.commit()
        assert shown(context, "orders") == []


def test_rollback_drops_sends_and_redelivers(context: Context) -> None:
    """T16, C8: the delivery count is raised; closing a session rolls back."""
    send_texts(context, "a")
    with context.transacted_session() as session:
        consumer, producer = session.consumer("orders"), session.producer("spread")
        assert received(consumer).delivery_count == 1
        producer.send(text="x")
        session.rollback()
        again = received(consumer)
        assert (again.redelivered, again.delivery_count) == (True, 2)
        producer.send(text="x")
    assert shown(context, "spread") == []
    with context.consumer("orders") as other:
        assert received(other).delivery_count == 3


def test_two_consumers_are_acknowledged_together(context: Context) -> None:
    """T16: also without a send, and over the members of a distributed queue."""
    send_texts(context, "a")
    context.producer("spread").send_many({"text": str(n)} for n in range(8))
    with context.transacted_session() as session:
        orders, spread = session.consumer("orders"), session.consumer("spread", prefetch=8)
        received(orders)
        for _ in range(8):
            received(spread)
        session.commit()
        assert (orders.statistics().acknowledged, spread.statistics().acknowledged) == (1, 8)
    assert shown(context, "orders") == shown(context, "spread") == []


def test_a_commit_that_fails_is_rolled_back_whole(context: Context) -> None:
    """T16: a target that takes nothing returns everything, and leaves no files, and the session continues."""
    send_texts(context, "a")
    with context.transacted_session() as session:
        consumer, good, small = session.consumer("orders"), session.producer("spread"), session.producer("small")
        with pytest.raises(MessageSizeError):
            small.send(text="x" * 11)  # refused at once; the transaction continues
        received(consumer)
        good.send(text="x")
        small.send(text="y")
        files = data_files(context, "spread")
        with pause_of(context, "small"), pytest.raises(TransactionRolledBackException, match="small"):
            session.commit()
        assert (shown(context, "spread"), data_files(context, "spread")) == ([], files)
        assert received(consumer).delivery_count == 2
        good.send(text="x")
        session.commit()
        assert shown(context, "spread") == ["x"]
        assert (len(data_files(context, "spread") - files), data_files(context, "small")) == (1, set())


def test_a_decided_transaction_is_completed_by_another_process(
    alone: Context, client_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: a target that is paused between the decision and its append waits; the error says so, and recovery sends once."""
    context = alone
    send_texts(context, "a")
    with context.transacted_session() as session:
        consumer = session.consumer("orders")
        received(consumer)
        session.producer("spread").send(text="x")
        session.producer("prices").send(text="y")
        original = CoordinatedCommit.complete

        def paused(self: Any, *arguments: Any) -> None:
            with pause_of(context, "spread"):
                original(self, *arguments)

        monkeypatch.setattr(CoordinatedCommit, "complete", paused)
        with pytest.raises(TransactionUnfinishedError, match="spread"):
            session.commit()
        monkeypatch.undo()
        assert consumer.receive(timeout=0) is None  # never redelivered
        (look,) = open_transactions(domain_of(context), records_of(context)).open
        assert (look.transaction.state.value, look.owner_lives) == ("committed", False)
        assert any("spread" in text for text in look.waits)
        with spark_jms.connect(client_root, housekeeping=False) as other:
            coordinators = Coordinators(domain_of(other), records_of(other))
            wait_until(lambda: not coordinators.recover(), what="the consumer acknowledges")
            assert shown(other, "spread") == ["x"]
            assert shown(other, "orders") == []
        session.producer("spread").send(text="x2")
        session.producer("prices").send(text="y2")
        session.commit()
    assert sorted(map(str, shown(context, "spread"))) == ["x", "x2"]
    assert not transactions(domain_of(context), records_of(context))


def test_an_owner_that_slept_through_recovery_cannot_commit(
    client_root: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16: another process has opened the coordinator before the decision; the sleeper learns that it is rolled back."""
    if not Domain(client_root).store_uri.startswith("memory:"):
        pytest.skip("only the memory store can kill a session of its own process")
    send_texts(context, "a")
    with context.transacted_session() as session:
        consumer = session.consumer("orders")
        received(consumer)
        session.producer("spread").send(text="x")
        original = Coordinator.decide

        def slept(self: Coordinator, *arguments: Any) -> None:
            home = home_of(records_of(context))
            assert isinstance(home, MemoryStore)
            (holder,) = {info.holder for info in home.infos(COORDINATORS_PREFIX).values() if info.holder is not None}
            home.crash(holder)
            assert not Coordinators(domain_of(context), records_of(context)).recover()
            original(self, *arguments)

        monkeypatch.setattr(Coordinator, "decide", slept)
        with pytest.raises(TransactionRolledBackException):
            session.commit()
        monkeypatch.undo()
        assert shown(context, "spread") == []
        assert received(consumer).redelivered
        session.producer("spread").send(text="x")
        session.commit()
    assert (shown(context, "orders"), shown(context, "spread")) == ([], ["x"])


@pytest.mark.parametrize("written", [True, False])
def test_a_failing_store_at_the_decision_is_asked_again(
    context: Context, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """T16: the call fails, and what the store has counts."""
    send_texts(context, "a")
    with context.transacted_session() as session:
        received(session.consumer("orders"))
        session.producer("spread").send(text="x")
        original = Coordinator.decide

        def failing(self: Coordinator, *arguments: Any) -> None:
            if written:
                original(self, *arguments)
            raise StoreBusyError("no answer")

        monkeypatch.setattr(Coordinator, "decide", failing)
        if written:
            session.commit()
        else:
            with pytest.raises(TransactionRolledBackException, match="no answer"):
                session.commit()
    assert shown(context, "spread") == (["x"] if written else [])
    assert len(shown(context, "orders")) == (0 if written else 1)
    assert not transactions(domain_of(context), records_of(context))


def test_a_transaction_that_takes_too_long_is_rolled_back(context: Context) -> None:
    """T16: its time-out; nothing that follows slips into another transaction unseen."""
    send_texts(context, "a")
    with context.transacted_session(timeout="1 s") as session:
        transaction, now = transaction_of(session), [100.0]
        transaction.monotonic_s = lambda: now[0]
        consumer, producer = session.consumer("orders"), session.producer("spread")
        received(consumer)
        producer.send(text="x")
        session.end_late()
        now[0] += 1
        session.end_late()
        with pytest.raises(TransactionRolledBackException, match="longer than 1 s"):
            producer.send(text="y")
        with pytest.raises(TransactionRolledBackException, match="longer than 1 s"):
            session.commit()
        assert received(consumer).redelivered
        producer.send(text="z")
        session.commit()
    assert (shown(context, "orders"), shown(context, "spread")) == ([], ["z"])


def test_a_closed_consumers_messages_belong_to_the_transaction(context: Context) -> None:
    """T16, C8: until the commit acknowledges them, or the rollback returns them."""
    send_texts(context, "a", "b")
    with context.transacted_session() as session:
        for end, rest in ((session.rollback, ["a", "b"]), (session.commit, [])):
            with session.consumer("orders", prefetch=2) as consumer:
                received(consumer)
                received(consumer)
            session.producer("spread").send(text="x")
            end()
            assert shown(context, "orders") == rest
    assert shown(context, "spread") == ["x"]


def test_a_listener_commits_in_batches(context: Context) -> None:
    """T16: after `transaction_batch` messages, or when none waits; a failure rolls back the batch."""
    send_texts(context, *"abcde")
    seen: list[str | None] = []

    with context.transacted_session() as session:
        producer = session.producer("spread")

        def listen(message: Message) -> None:
            seen.append(message.text)
            producer.send(text=f"{message.text}!")
            if message.text == "c" and not message.redelivered:
                raise ValueError("once")

        consumer = session.consumer("orders", listener=listen, transaction_batch=2)
        wait_until(lambda: consumer.statistics().acknowledged == 5)
        with pytest.raises(IllegalStateException, match="another session"):
            session.consumer("orders", listener=listen)
    assert seen == list("abccde")
    assert sorted(shown(context, "spread"), key=str) == [f"{each}!" for each in "abcde"]


def test_replies_belong_to_the_transaction(context: Context) -> None:
    """T16, C15: to a temporary queue; what such a queue delivers is acknowledged when the rest is decided."""
    inbox = context.create_temporary_queue()
    context.producer("orders").send(text="ask", reply_to=inbox.name)
    with context.transacted_session() as session:
        request = received(session.consumer("orders"))
        request.reply(text="answer")
        answers = session.consumer(inbox.name)
        assert answers.receive(0) is None
        session.commit()
        assert received(answers).text == "answer"
        session.producer("spread").send(text="seen")
        session.commit()
        assert (shown(context, "orders"), shown(context, inbox.name)) == ([], [])


def test_a_temporary_queue_follows_an_unfinished_commit(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, C15: the transaction is decided, so a later rollback does not return what the queue delivered."""
    inbox = context.create_temporary_queue()
    context.producer(inbox.name).send(text="answer")
    with context.transacted_session() as session:
        answers = session.consumer(inbox.name)
        received(answers)
        for name in ("orders", "spread"):
            session.producer(name).send(text="x")
        with monkeypatch.context() as patch:
            patch.setattr(coordinated_commit, "append_transfer", _failing)
            with pytest.raises(TransactionUnfinishedError):
                session.commit()
        session.rollback()
        assert shown(context, inbox.name) == []
        assert not coordinators_of(context).recover()
    assert (shown(context, "orders"), shown(context, "spread")) == (["x"], ["x"])


def test_what_fails_behind_the_decision_is_no_rollback(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, C15: the messages are sent, and what a temporary queue has delivered ends with its context."""
    inbox = context.create_temporary_queue()
    context.producer(inbox.name).send(text="answer")
    with context.transacted_session() as session:
        received(session.consumer(inbox.name))
        session.producer("spread").send(text="x")
        monkeypatch.setattr(TransactedDelivery, "acknowledge", _failing)
        session.commit()
    assert shown(context, "spread") == ["x"]


def test_an_acknowledgement_of_unknown_outcome_is_named(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: one write of the store, which may have been kept: no rollback is claimed."""
    send_texts(context, "a")
    with context.transacted_session() as session:
        received(session.consumer("orders"))
        kind = members_kind()
        original = kind.commit

        def failing(self: Members, *arguments: Any) -> None:
            original(self, *arguments)
            monkeypatch.undo()
            raise OutcomeUnknownError("no answer")

        monkeypatch.setattr(kind, "commit", failing)
        with pytest.raises(CommitOutcomeUnknownError, match="no answer"):
            session.commit()
        session.producer("spread").send(text="next")
        session.commit()
    assert (shown(context, "orders"), shown(context, "spread")) == ([], ["next"])


@pytest.mark.parametrize("again", [False, True])
def test_an_interrupt_at_the_decision_undoes_nothing(
    context: Context, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """T16: Ctrl-C, once or twice, when the store has the decision; other processes complete the transaction."""
    send_texts(context, "a")
    with context.transacted_session() as session:
        received(session.consumer("orders"))
        session.producer("spread").send(text="x")
        original = Coordinator.decide

        def interrupted(self: Coordinator, *arguments: Any) -> None:
            before = self.state
            original(self, *arguments)
            self.state = before  # as when the interrupt comes between the write and this
            raise KeyboardInterrupt

        def interrupted_again(*_: Any) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "decide", interrupted)
            if again:
                patch.setattr(Coordinators, "has_decided", interrupted_again)
            with pytest.raises(KeyboardInterrupt):
                session.commit()
    wait_until(lambda: not coordinators_of(context).recover() and shown(context, "orders") == [])
    assert shown(context, "spread") == ["x"]


@pytest.mark.parametrize("value", [b"{", b'{"v": 99}'])
def test_a_damaged_coordinator_keeps_back_no_other_transaction(
    context: Context, client_root: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, C14: the next session takes another one, recovery names it, and `jmsq transactions` shows it with the others."""
    with records_of(context).connect("test") as session, session.open(coordinator_record(0)) as handle:
        handle.commit([Put(COORDINATOR_KEY, value)])
    with context.transacted_session() as session:
        session.producer("spread").send(text="x")
        session.producer("orders").send(text="x")
        session.commit()
    assert (shown(context, "spread"), shown(context, "orders")) == (["x"], ["x"])
    (problem,) = coordinators_of(context).recover()
    assert coordinator_record(0) in problem
    with monkeypatch.context() as patch:
        for module in (coordinated_commit, claims_transaction):
            patch.setattr(module, "append_transfer", _failing)
        with context.transacted_session() as session:
            session.producer("spread").send(text="y")
            session.producer("orders").send(text="y")
            with pytest.raises(TransactionUnfinishedError):
                session.commit()
        damaged, unfinished = transactions(domain_of(context), records_of(context))
    assert (damaged.transaction, damaged.state, damaged.made) == (coordinator_record(0), DAMAGED, None)
    assert coordinator_record(0) in damaged.waits[0]
    assert unfinished.state == "committed"
    shows = CliRunner().invoke(cli, ["--root", client_root, "transactions"])
    assert (shows.exit_code, "damaged" in shows.stdout, "committed" in shows.stdout) == (0, True, True)


def test_a_server_that_hangs_keeps_no_transaction_from_its_coordinator(
    alone: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T16, M10: recovery waits for it, and a new transaction begins meanwhile."""
    with monkeypatch.context() as patch, alone.transacted_session() as session:
        patch.setattr(coordinated_commit, "append_transfer", _failing)
        for name in ("spread", "orders"):
            session.producer(name).send(text="x")
        with pytest.raises(TransactionUnfinishedError):
            session.commit()
    asked, answers = threading.Event(), threading.Event()
    original = transfer.append_transfer

    def hanging(*arguments: Any) -> Any:
        asked.set()
        assert answers.wait(60)
        return original(*arguments)

    monkeypatch.setattr(claims_transaction, "append_transfer", hanging)
    recovery = threading.Thread(target=coordinators_of(alone).recover, daemon=True)
    recovery.start()
    assert asked.wait(60)
    taking = threading.Thread(
        target=lambda: coordinators_of(alone).give_back(coordinators_of(alone).take()), daemon=True
    )
    taking.start()
    taking.join(10)
    was_free = not taking.is_alive()
    answers.set()
    recovery.join(60)
    assert was_free
    assert (shown(alone, "spread"), shown(alone, "orders")) == (["x"], ["x"])


def _failing(*_: Any, **__: Any) -> None:
    raise ConsumerClosedException("closed meanwhile")


def test_what_a_transacted_session_refuses(context: Context) -> None:
    """T16, T11: asynchronous sends, transactions of its own, recover; wrong arguments are named."""
    with pytest.raises(OptionError, match="timeout"):
        context.transacted_session(timeout="soon")
    with context.transacted_session() as session:
        producer, consumer = session.producer("orders"), session.consumer("orders")
        with pytest.raises(IllegalStateException, match="asynchronous"):
            producer.send(text="a", completion=Completion())
        with pytest.raises(IllegalStateException, match="transaction"):
            producer.send_many([{"text": "a"}], transaction=("a", 1))
        with pytest.raises(IllegalStateException, match="rollback"):
            consumer.recover()
        with pytest.raises(OptionError, match="needs a listener"):
            session.consumer("orders", transaction_batch=3)
        with pytest.raises(OptionError, match="acknowledge"):
            context.consumer("orders", acknowledge="transacted")  # type: ignore[arg-type]
        session.commit()  # nothing
    for call in (session.commit, session.rollback):
        with pytest.raises(ClosedError):
            call()
    session.close()
    assert shown(context, "orders") == []


def test_whole_tables_and_units_of_work_are_collected(context: Context) -> None:
    """T16: every way of sending belongs to the transaction, in the order of the calls."""
    with context.transacted_session() as session:
        producer = session.producer("orders")
        producer.send(text="a")
        assert producer.send_table(pa.table({"text": ["b", "c"]})).messages == 2
        producer.send_many([{"text": "d"}])
        session.producer("prices").send(text="p")
        session.commit()
    assert shown(context, "orders") == list("abcd")


class Completion:
    def on_completion(self, message: Message) -> None: ...

    def on_exception(self, message: Message, error: Exception) -> None: ...


def test_a_rolled_back_transaction_leaves_no_reservation(tmp_path: Path) -> None:
    """T16, T1: room of a quota is reserved before the decision, and returned when another target refuses."""
    root, queue = str(tmp_path), {"kind": "queue"}
    made(root, {"messagesMaximum": 2}, spread=queue, audit=queue)
    try:
        with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
            for accepted in (False, True):
                for name in ("orders", "orders", "spread", "audit"):
                    session.producer(name).send(text="x")
                if accepted:
                    session.commit()
                    continue
                with pause_of(context, "spread"), pytest.raises(TransactionRolledBackException, match="paused"):
                    session.commit()
                (row,) = quotas(domain_of(context), ["small"])
                assert (row.messages_used, row.messages_reserved) == (0, 0)
            session.producer("orders").send(text="y")
            session.producer("audit").send(text="y")
            with pytest.raises(TransactionRolledBackException, match="no room"):
                session.commit()
            assert (len(shown(context, "orders")), len(shown(context, "audit"))) == (2, 1)
    finally:
        MemoryStore.forget(f"quotas-{tmp_path.name}")


def test_power_durability_syncs_before_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, C5: the decision may outlive the power, so the files that it names must too."""
    steps: list[str] = []
    power = {"kind": "queue", "durability": "power"}
    with memory_domain(orders=power, audit=power) as root, spark_jms.connect(root, housekeeping=False) as context:
        sync, decide = LocalStorage.sync, Coordinator.decide

        def synced(self: LocalStorage, paths: Sequence[str]) -> None:
            steps.extend("sync" for path in paths if path.endswith(".parquet"))
            sync(self, paths)

        def decided(self: Coordinator, *arguments: Any) -> None:
            steps.append("decide")
            decide(self, *arguments)

        monkeypatch.setattr(LocalStorage, "sync", synced)
        monkeypatch.setattr(Coordinator, "decide", decided)
        with context.transacted_session() as session:
            for name in ("orders", "audit"):
                session.producer(name).send(text="x")
            session.commit()
    assert steps[:3] == ["sync", "sync", "decide"]
