"""The coordinators of transacted sessions: taken for a commit, and given back (T16)."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

import spark_jms
from spark_jms.claims.servers.stores import home_of
from spark_jms.claims.transactions import transaction
from spark_jms.claims.transactions.transaction import Coordinator
from spark_jms.client import Context, TransactedSession
from spark_jms.core.transactions.transaction import COORDINATORS_PREFIX, coordinator_record
from spark_jms.errors import TransactionRolledBackException
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import coordinators_of, records_of
from tests.harness.domains.transactions import pause_of, received, shown
from tests.harness.messages.shorthands import send_texts


def test_a_restored_coordinator_gives_other_numbers(alone: Context) -> None:
    """T16: a target that knows its next number shows that the record is an older copy; nothing is taken for sent."""
    with alone.transacted_session() as session:
        for number in range(2):
            for name in ("orders", "prices"):
                session.producer(name).send(text=str(number))
            session.commit()
            coordinator = coordinators_of(alone).take()
            nonce, coordinator.state = coordinator.state.nonce, replace(coordinator.state, number=0)
            coordinators_of(alone).keep(coordinator)
        assert coordinator.state.nonce != nonce or number == 1
    assert shown(alone, "orders") == ["0", "1"]


def held_coordinators(context: Context) -> int:
    return sum(info.holder is not None for info in home_of(records_of(context)).infos(COORDINATORS_PREFIX).values())


def commit_to_two(session: TransactedSession) -> None:
    for name in ("orders", "prices"):
        session.producer(name).send(text="x")
    session.commit()


def test_sessions_hold_no_coordinator_between_commits(alone: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: a process keeps as many as it has commits at once, and uses them again, also after a rollback."""
    with ExitStack() as stack:
        sessions = [stack.enter_context(alone.transacted_session()) for _ in range(3)]
        for session in (*sessions, *sessions):
            commit_to_two(session)
            assert held_coordinators(alone) == 1
        with pause_of(alone, "prices"), pytest.raises(TransactionRolledBackException, match="paused"):
            commit_to_two(sessions[0])
        begin, both = Coordinator.begin, threading.Barrier(2)

        def at_once(self: Coordinator, *arguments: Any) -> None:
            both.wait(60)
            begin(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Coordinator, "begin", at_once)
            threads = [threading.Thread(target=commit_to_two, args=[session]) for session in sessions[:2]]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        assert held_coordinators(alone) == 2
    assert len(shown(alone, "orders")) == 8


def test_no_number_of_open_sessions_refuses_a_commit() -> None:
    """T16: neither sessions of this process, nor coordinators that other processes hold."""
    with (
        memory_domain("memory", orders="queue", prices="queue") as root,
        spark_jms.connect(root, housekeeping=False) as context,
        ExitStack() as stack,
    ):
        other = stack.enter_context(records_of(context).connect("other"))
        for slot in range(300):
            other.open(coordinator_record(slot))
        for _ in range(300):
            commit_to_two(stack.enter_context(context.transacted_session()))
        assert len(shown(context, "orders")) == 300


def test_commit_without_a_coordinator_is_rolled_back(alone: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T16: nothing was decided, so the error does not say "committed"."""
    monkeypatch.setattr(transaction, "MAX_COORDINATORS", 1)
    send_texts(alone, "a")
    with records_of(alone).connect("other") as other, alone.transacted_session() as session:
        handle = other.open(coordinator_record(0))
        consumer = session.consumer("orders")
        received(consumer)
        session.producer("spread").send(text="x")
        with pytest.raises(TransactionRolledBackException, match="jmsq transactions"):
            session.commit()
        assert received(consumer).redelivered
        session.producer("spread").send(text="x")
        handle.close()
        session.commit()
    assert (shown(alone, "orders"), shown(alone, "spread")) == ([], ["x"])
