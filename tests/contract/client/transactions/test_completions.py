"""Asynchronous sends of a transacted session: their listeners are called when its transaction ends (T11, T16)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from spark_jms.admin.destinations import pause, resume
from spark_jms.client import Completion, Context, Message
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    IllegalStateException,
    MessageSizeError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.testing.domain import wait_until
from spark_jms.testing.inside import domain_of, transaction_of
from tests.harness.domains.transactions import shown
from tests.harness.messages.completions import Outcomes, numbers, send_texts


def test_listeners_are_called_by_the_commit(context: Context) -> None:
    """T11, T16: none before; all when it returns, in the order of each producer's sends, in one thread of the context, with the ids
    of the messages in the table. Other sends of the session keep their place among them."""
    outcomes, other = Outcomes(), Outcomes()
    with context.transacted_session() as session:
        producer, prices = session.producer("orders"), session.producer("prices")
        send_texts(producer, outcomes, 0, 3)
        producer.send(text="blocking")
        send_texts(producer, outcomes, 3, 5)
        send_texts(prices, other, 0, 2)
        assert (outcomes.sent, other.sent, producer.statistics().outstanding) == ([], [], 5)
        session.commit()
        assert (outcomes.texts(), other.texts()) == (numbers(0, 5), numbers(0, 2))
        assert (producer.statistics().outstanding, prices.statistics().outstanding) == (0, 0)
        send_texts(producer, outcomes, 5, 6)
        session.commit()
    assert outcomes.texts() == numbers(0, 6)
    assert outcomes.failed == other.failed == []
    assert shown(context, "orders") == [*numbers(0, 3), "blocking", *numbers(3, 6)]
    ids = {message.text: message.message_id for message in context.browser("orders")}
    assert {message.text: message.message_id for message in outcomes.sent}.items() <= ids.items()
    assert len(outcomes.threads | other.threads) == 1
    assert threading.current_thread() not in outcomes.threads


@pytest.mark.parametrize("how", ["rollback", "close", "context", "time-out", "refused"])
def test_listeners_get_the_end_of_a_rolled_back_transaction(context: Context, how: str) -> None:
    """T11, T16: TransactionRolledBackException, whoever rolls back; the call that ends the transaction returns behind them."""
    outcomes, session = Outcomes(), context.transacted_session()
    producer = session.producer("orders", send_timeout=0)
    send_texts(producer, outcomes, 0, 3)
    producer.close()  # it does not wait for the transaction
    if how == "time-out":
        transaction = transaction_of(session)
        late_s = transaction.monotonic_s() + 7200
        transaction.monotonic_s = lambda: late_s  # type: ignore[method-assign]
        session.end_late()
        assert outcomes.failed == []
    if how == "refused":
        pause(domain_of(context), "orders", [INSERTION])
    if how in ("time-out", "refused"):
        with pytest.raises(TransactionRolledBackException):
            session.commit()
    else:
        ends: dict[str, Callable[[], object]] = {
            "rollback": session.rollback,
            "close": session.close,
            "context": context.close,
        }
        ends[how]()
    assert [(text, type(error)) for text, error in outcomes.failed] == [
        (text, TransactionRolledBackException) for text in numbers(0, 3)
    ]
    assert outcomes.sent == []
    session.close()
    assert len(outcomes.failed) == 3


@pytest.mark.parametrize("raised", [TransactionUnfinishedError, CommitOutcomeUnknownError, KeyboardInterrupt])
def test_listeners_get_what_is_known_of_a_commit(
    context: Context, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T11, T16: an unfinished one is committed; of one that is unknown, or was interrupted, the listeners learn just that."""
    outcomes = Outcomes()

    def fail() -> None:
        raise raised("the test")

    with context.transacted_session() as session:
        send_texts(session.producer("orders"), outcomes, 0, 2)
        monkeypatch.setattr(transaction_of(session), "_commit", fail)
        with pytest.raises(raised):
            session.commit()
    if raised is TransactionUnfinishedError:
        assert (outcomes.texts(), outcomes.failed) == (numbers(0, 2), [])
    else:
        assert [type(error) for _, error in outcomes.failed] == [CommitOutcomeUnknownError] * 2


def test_commit_is_not_for_a_listener(context: Context) -> None:
    """T11: of a session with asynchronous sends; the commit of its thread would wait for the listener. A listener may send."""
    refused: list[str] = []
    outcomes = Outcomes()
    with context.transacted_session() as session:
        producer = session.producer("orders")

        def answer(_: Message) -> None:
            for call in (session.commit, session.rollback, session.close):
                try:
                    call()
                except IllegalStateException as error:
                    refused.append(str(error).split(" was")[0])
            producer.send(text="next", completion=outcomes)

        producer.send(text="first", completion=Completion(answer, lambda *_: None))
        session.commit()
        assert refused == [f"TransactedSession.{call}" for call in ("commit", "rollback", "close")]
        assert outcomes.sent == []
        session.commit()
        assert outcomes.texts() == ["next"]
    assert shown(context, "orders") == ["first", "next"]


def test_refused_message_is_refused_by_the_send(context: Context) -> None:
    """T11, T16: it belongs to no transaction, and its listener is not called."""
    outcomes = Outcomes()
    with context.transacted_session() as session:
        producer = session.producer("orders")
        with pytest.raises(MessageSizeError):
            producer.send(text="x" * (10 * 2**20 + 1), completion=outcomes)
        send_texts(producer, outcomes, 0, 1)
        session.commit()
    assert (outcomes.texts(), outcomes.failed) == (numbers(0, 1), [])


def test_held_destination_holds_back_no_completion_of_a_session(context: Context) -> None:
    """T11: while the context's sends to a paused destination are held, commits of a session elsewhere tell their listeners."""
    held, outcomes = Outcomes(), Outcomes()
    producer = context.producer("orders", send_timeout=60)
    pause(domain_of(context), "orders", [INSERTION])
    send_texts(producer, held, 0, 2)
    with context.transacted_session() as session:
        send_texts(session.producer("spread"), outcomes, 0, 3)
        session.commit()
    assert (outcomes.texts(), held.sent) == (numbers(0, 3), [])
    resume(domain_of(context), "orders", [INSERTION])
    producer.close()
    assert held.texts() == numbers(0, 2)


def test_session_of_a_listener_commits_its_asynchronous_sends(context: Context) -> None:
    """T16, T11: in transactions of several messages, which the thread of the message listener commits."""
    outcomes = Outcomes()
    context.producer("orders").send_many([{"text": text} for text in numbers(0, 4)])
    with context.transacted_session() as session:
        spread = session.producer("spread")

        def forward(message: Message) -> None:
            spread.send(text=message.text, completion=outcomes)

        session.consumer("orders", listener=forward, transaction_batch=2)
        wait_until(lambda: len(outcomes.sent) == 4)
    assert outcomes.texts() == numbers(0, 4)
