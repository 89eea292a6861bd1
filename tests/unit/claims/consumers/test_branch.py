"""A consumer's branch on a server, its thread, and a branch in place (M10): claims/consumers/branches.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from spark_jms.claims.consumers.branches import Branch, BranchInPlace
from spark_jms.claims.consumers.server_part import ServerPart
from spark_jms.claims.servers.timed_stores import (
    AnswerLostError,
    Inline,
    ServerAwayError,
    StoreThread,
    StoreThreadBusyError,
)
from spark_jms.errors import QueryRunningError
from spark_jms.store import OutcomeUnknownError, StoreError
from spark_jms.testing.domain import wait_until

SHORT_S, LONG_S = 0.05, 30.0


class Session:
    """In the place of a part."""

    closed = False

    def ask(self, act: Callable[[Any], Any]) -> Any:
        return act(self)

    def close(self) -> None:
        self.closed = True


def test_session_ends_when_a_call_that_hangs_returns() -> None:
    """M10, D4: a consumer is closed while its store hangs. When the store is back, its session must not count as living: it
    would keep the records from all others."""
    session, returns = Session(), threading.Event()
    branch = Branch("east", lambda: cast(ServerPart, session), StoreThread("east"))

    def hang(_: Any) -> None:
        returns.wait(LONG_S)

    with pytest.raises(ServerAwayError):
        branch.call(hang, SHORT_S)
    branch.close()
    assert not session.closed
    returns.set()
    wait_until(lambda: session.closed)


def test_older_session_after_an_outage_is_waited_for_again() -> None:
    """M10: the time that a branch gives its older session begins again when the store was away in between."""
    times, answers = iter((0.0, 10.0, 60.0)), [QueryRunningError("old"), StoreError("gone"), QueryRunningError("old")]

    def act(_: Any) -> None:
        raise answers.pop(0)

    now = [0.0]
    branch = Branch("b", lambda: cast(ServerPart, Session()), Inline(), lambda: now[0])
    for now[0] in times:
        with pytest.raises(ServerAwayError):
            branch.call(act, 1.0)


@pytest.mark.parametrize("lane", [StoreThread("east"), Inline()])
def test_closed_lane_does_its_last_work(lane: StoreThread | Inline) -> None:
    """M10: after the current work."""
    done: list[str] = []
    lane.run(lambda: done.append("first"), LONG_S)
    lane.close(lambda: done.append("last"))
    wait_until(lambda: done == ["first", "last"])


def test_lane_does_one_work_at_a_time() -> None:
    """M10: a caller learns that the work before has not returned."""
    lane, returns = StoreThread("east"), threading.Event()
    with pytest.raises(StoreThreadBusyError):
        lane.run(lambda: returns.wait(LONG_S), SHORT_S)
    assert lane.busy
    with pytest.raises(StoreThreadBusyError):
        lane.run(lambda: None, LONG_S)
    returns.set()
    wait_until(lambda: not lane.busy)
    assert lane.run(lambda: "answer", LONG_S) == "answer"
    lane.close()


@pytest.mark.parametrize("writes", [True, False])
def test_write_without_an_answer_may_have_been_kept(writes: bool) -> None:
    """M10, T16: one that the server was asked for; a question, and a write that finds the lane busy, changes nothing."""
    returns = threading.Event()
    branch = Branch("east", lambda: cast(ServerPart, Session()), StoreThread("east"))

    def hang(_: Any) -> None:
        returns.wait(LONG_S)

    with pytest.raises(ServerAwayError) as raised:
        branch.call(hang, SHORT_S, writes=writes)
    assert isinstance(raised.value, AnswerLostError) == writes
    with pytest.raises(ServerAwayError) as raised:
        branch.call(hang, SHORT_S, writes=True)
    assert not isinstance(raised.value, AnswerLostError)
    returns.set()
    branch.close()


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), StoreError("gone")])
def test_store_that_cannot_tell_may_have_kept_the_write(error: StoreError) -> None:
    """M10, T16"""

    def act(_: Any) -> None:
        raise error

    branch = Branch("b", lambda: cast(ServerPart, Session()), Inline())
    with pytest.raises(ServerAwayError) as raised:
        branch.call(act, 1.0, writes=True)
    assert isinstance(raised.value, AnswerLostError) == isinstance(error, OutcomeUnknownError)


@pytest.mark.parametrize("error", [OutcomeUnknownError("lost"), StoreError("gone"), QueryRunningError("old")])
def test_branch_in_place_raises_what_its_store_raises(error: Exception) -> None:
    """M10, C9: without servers an error of the only store is no reason to wait, and no new session begins."""
    session = Session()
    branch = BranchInPlace(cast(ServerPart, session))

    def act(_: Any) -> None:
        raise error

    for call in (lambda: branch.call(act, 0.0, writes=True), lambda: branch.begin(act)(0.0)):
        with pytest.raises(type(error)) as raised:
            call()
        assert raised.value is error
    assert (branch.generation, branch.why_away, branch.older_self, branch.is_due()) == (0, "", None, False)
    assert branch.call(lambda part: part is session, 0.0)
    assert not session.closed
    branch.close()
    assert session.closed
