"""A store that fails behind a write: the consumer does not know whether it was kept, and what the store has counts (C9, T16)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.claims.batches.acknowledgement import Acknowledger
from spark_jms.claims.records.members import Members
from spark_jms.client import Consumer, Context
from spark_jms.errors import CommitOutcomeUnknownError, TransactionRolledBackException
from spark_jms.store import OutcomeUnknownError, StoreBusyError
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import coordinators_of, members_of, receiver_of, subscriber_of
from tests.harness.domains.servers import Away, applied, queue_on


@pytest.fixture
def alone() -> Iterator[Context]:
    """A context without housekeeping, on a store in memory."""
    with memory_domain(orders="queue") as root, spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


class LostAnswer:
    """In place of the next write of a consumer's session, or of the next `times`."""

    def __init__(self, consumer: Consumer, *, written: bool, times: int = 1) -> None:
        self._members: Members = members_of(subscriber_of(consumer))
        self._written, self._write, self._left = written, "change", times

    def __enter__(self) -> None:
        session = self._members.session
        original = getattr(session, self._write)

        def lost(*arguments: Any) -> None:
            self._left -= 1
            if not self._left:
                setattr(session, self._write, original)
            if self._written:
                original(*arguments)
            raise OutcomeUnknownError("no answer")

        setattr(session, self._write, lost)

    def __exit__(self, *_: object) -> None:
        assert "lost" not in getattr(self._members.session, self._write).__name__


def sent(context: Context, *texts: str) -> None:
    context.producer("orders").send_many({"text": text} for text in texts)


def shown(context: Context) -> list[str | None]:
    return [message.text for message in context.browser("orders")]


def test_acknowledgement_with_lost_answers_can_be_repeated(alone: Context) -> None:
    """C8, C9: a store that loses one answer after the other is named."""
    sent(alone, "a", "b")
    with alone.consumer("orders", acknowledge="individual") as consumer:
        message = consumer.receive(timeout=5)
        assert message is not None
        with LostAnswer(consumer, written=False, times=2), pytest.raises(OutcomeUnknownError):
            message.acknowledge()
        assert shown(alone) == ["a", "b"]
        following = consumer.receive(timeout=5)
        assert following is not None
        following.acknowledge()
        assert shown(alone) == []


@pytest.mark.parametrize("written", [True, False])
def test_acknowledgement_with_lost_answer_is_written_again(alone: Context, written: bool) -> None:
    """C8, C9: what the store has of the first write stays as it is, and the message does not come again."""
    sent(alone, "a", "b")
    with alone.consumer("orders", acknowledge="individual") as consumer:
        message = consumer.receive(timeout=5)
        assert message is not None
        with LostAnswer(consumer, written=written):
            message.acknowledge()
        assert shown(alone) == ["b"]
    with alone.consumer("orders") as another:
        following = another.receive(timeout=5)
        assert following is not None
        assert (following.text, another.receive(timeout=0)) == ("b", None)


@pytest.mark.parametrize("written", [True, False])
def test_return_with_lost_answer_is_written_again(alone: Context, written: bool) -> None:
    """C8, C9: the message is returned once, with one delivery more."""
    sent(alone, "a")
    with alone.consumer("orders", acknowledge="individual") as consumer:
        message = consumer.receive(timeout=5)
        assert message is not None
        with LostAnswer(consumer, written=written):
            message.reject()
        again = consumer.receive(timeout=5)
        assert again is not None
        assert (again.text, again.redelivered, again.delivery_count) == ("a", True, 2)


@pytest.mark.parametrize("written", [True, False])
def test_acknowledged_message_is_not_returned_by_an_old_picture(alone: Context, written: bool) -> None:
    """C9, T16: what the store has as done stays done, because a purge may have taken it; otherwise it comes again."""
    sent(alone, "a")
    with alone.transacted_session() as session:
        consumer = session.consumer("orders")
        assert consumer.receive(timeout=5) is not None
        with LostAnswer(consumer, written=written), pytest.raises(CommitOutcomeUnknownError):
            session.commit()
        again = consumer.receive(timeout=0 if written else 5)
        assert (again is None) == written
        session.commit()
    assert shown(alone) == []


@pytest.mark.parametrize("written", [True, False])
def test_claim_with_lost_answer_keeps_no_message_back(alone: Context, written: bool) -> None:
    """C9: the claim was never delivered, so its messages are available, unflagged, and the call goes on with them. A store that
    loses one answer after the other is named."""
    sent(alone, "a", "b")
    with alone.consumer("orders") as consumer:
        with LostAnswer(consumer, written=written, times=2), pytest.raises(OutcomeUnknownError):
            consumer.receive(timeout=5)
        with LostAnswer(consumer, written=written):
            first = consumer.receive(timeout=5)
        found = [first, consumer.receive(timeout=5)]
        assert [(m.text, m.redelivered) for m in found if m is not None] == [("a", False), ("b", False)]


@pytest.mark.parametrize("written", [True, False])
def test_acknowledgement_beside_a_claim_with_lost_answer_is_kept(alone: Context, written: bool) -> None:
    """C8, C9: in the mode auto the same write has both; neither message comes again."""
    sent(alone, "a", "b")
    with alone.consumer("orders", acknowledge="auto", prefetch=1) as consumer:
        assert consumer.receive(timeout=5) is not None
        with LostAnswer(consumer, written=written):
            second = consumer.receive(timeout=5)
        assert second is not None
        assert (second.text, second.redelivered) == ("b", False)
        assert shown(alone) == ["b"]
        assert consumer.receive(timeout=0) is None
    assert shown(alone) == []


@pytest.mark.parametrize("written", [True, False])
def test_commit_on_one_of_several_servers_names_the_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """T16, M10: one write of one server's store, whose answer is lost: no rollback is claimed."""
    root = applied(tmp_path, queue_on("a", "b"))
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        sent(context, "x")
        assert session.consumer("orders").receive(timeout=10) is not None
        original = Acknowledger.acknowledge

        def lost(self: Acknowledger, *arguments: Any, **options: Any) -> Any:
            if written:
                original(self, *arguments, **options)
            raise OutcomeUnknownError("no answer")

        monkeypatch.setattr(Acknowledger, "acknowledge", lost)
        with pytest.raises(CommitOutcomeUnknownError, match="no answer"):
            session.commit()
        assert shown(context) == ([] if written else ["x"])


def test_commit_on_a_server_that_refuses_is_rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16, M10: the store says that it has written nothing."""

    def busy(*_: Any, **__: Any) -> Any:
        raise StoreBusyError("locked")

    root = applied(tmp_path, queue_on("a", "b"))
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        sent(context, "x")
        assert session.consumer("orders").receive(timeout=10) is not None
        monkeypatch.setattr(Acknowledger, "acknowledge", busy)
        with pytest.raises(TransactionRolledBackException, match="locked"):
            session.commit()


@pytest.mark.parametrize("server", ["a", "b"])
def test_pledges_end_on_every_server_that_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> None:
    """T16, M10: one that is away keeps no other server's messages pledged, whichever is asked first."""
    root = applied(tmp_path, queue_on("a", "b"))
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        sent(context, *map(str, range(4)))
        consumer = session.consumer("orders", prefetch=4)
        for _ in range(4):
            assert consumer.receive(timeout=10) is not None
        ended: list[int] = []
        original = Acknowledger.end_pledges

        def end(self: Acknowledger, *arguments: Any, **options: Any) -> None:
            original(self, *arguments, **options)
            ended.extend(options["members"])

        monkeypatch.setattr(Acknowledger, "end_pledges", end)
        delivery = receiver_of(consumer).transacted
        keys = delivery.delivered()
        coordinator = coordinators_of(context).take()
        try:
            coordinator.begin([], delivery.origins(keys), 0)
            ticket = coordinator.state.transaction.ticket
            delivery.pledge(keys, ticket, coordinator.record, 5.0)
            coordinator.decide([])
            with Away(root, server), pytest.raises(spark_jms.errors.MemberUnavailableError, match=f"server {server}"):
                delivery.end(ticket, committed=True)
            assert ended == [{"a": 1, "b": 0}[server]]  # the member on the other one
        finally:
            coordinators_of(context).give_back(coordinator)
