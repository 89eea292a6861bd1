"""A consumer's branch on one server: its session and records there, and what becomes of them when the server fails.

    the branch is   a call ...                                   becomes
    -------------   ----------                                   -------
    closed          opens the store and a session, then acts     open, or away when that fails
    open            acts                                         open; away when the store fails or the session has ended
                    does not return in time                      busy
    busy            fails at once                                open when the call returns; closed if the call wrote,
                                                                 because its outcome is unknown here
    away            fails at once until its pause is over        closed
    stopped         fails at once                                closed, when the table says that it is started again

A closed branch that opens again is to the store what a restarted consumer is: a new session that attaches to the record
sets. A query finds its claims there; those of a plain client ended with its session. `generation` tells sessions apart.

Features: M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from spark_jms.claims.lane import AnswerLostError, Awaited, LaneBusyError, Runs, ServerAwayError
from spark_jms.claims.subscriber import Subscriber
from spark_jms.errors import JmsqError, QueryRunningError, SessionEndedException
from spark_jms.store import OutcomeUnknownError, RecordCorruptError, StoreError

T = TypeVar("T")
log = logging.getLogger("spark_jms")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_CLOSE_S = 5.0
_OLDER_SELF_S = 15.0  # how long an older session of this query may take to end


class Branch:
    """Not thread-safe: the subscriber's lock guards it. `opened` makes a consumer in a new session; `note_late` is told of each call
    that is late or fails."""

    def __init__(
        self,
        server: str,
        opened: Callable[[], Subscriber],
        lane: Runs,
        monotonic_s: Callable[[], float] = time.monotonic,
        note_late: Callable[[], object] = lambda: None,
    ) -> None:
        self.server, self.generation = server, 0
        self._note_late = note_late
        self.why_away = ""  # "" while it answers
        self._opened, self._lane, self._monotonic_s = opened, lane, monotonic_s
        self._stopped = False
        self._subscriber: Subscriber | None = None
        self._unknown = False  # a call that writes did not return in time
        self._pause_s, self._retry_s = 0.0, monotonic_s()
        # It is away because an older session of this query lives there.
        self.older_self: QueryRunningError | None = None
        self._older_self_until_s: float | None = None

    def call(self, act: Callable[[Subscriber], T], wait_s: float, *, writes: bool = False) -> T:
        """Raises ServerAwayError, which is an AnswerLostError when a write may have been kept, and every error of `act` that is not
        the store's."""
        return self.begin(act, writes=writes)(wait_s)

    def begin(self, act: Callable[[Subscriber], T], *, writes: bool = False) -> Callable[[float], T]:
        """The first half of `call`, which waits for nothing, so that several servers can be asked at once. Returns the second: it
        takes the answer, and has to be called before the next call."""
        why_away = self.why_away

        def refused(wait_s: float) -> T:
            raise ServerAwayError(why_away)

        if self._stopped or self._monotonic_s() < self._retry_s:
            return refused
        try:
            begun = self._lane.start(lambda: self._act(act))
        except LaneBusyError:
            return partial(self._answer, None, writes)
        return partial(self._answer, begun, writes)

    def _answer(self, begun: Awaited[T] | None, writes: bool, wait_s: float) -> T:
        """`begun` None: other work is under way in the lane."""
        try:
            if begun is None:
                raise LaneBusyError()
            result = begun.wait(wait_s)
        except LaneBusyError:
            self._unknown = self._unknown or writes
            if self._monotonic_s() > (self._older_self_until_s or 0.0):
                self._forget_older_self()
            self._note_late()
            raise self._away("its store does not answer in time", lost=writes and begun is not None) from None
        except RecordCorruptError:
            raise
        except QueryRunningError as error:
            now, self.older_self = self._monotonic_s(), error
            self._older_self_until_s = self._older_self_until_s or now + _OLDER_SELF_S
            if now > self._older_self_until_s:
                raise
            raise self._paused(error) from error
        except (StoreError, SessionEndedException) as error:
            self._forget_older_self()
            self._note_late()
            raise self._paused(error, lost=isinstance(error, OutcomeUnknownError)) from error
        if self.why_away:
            log.warning("server %s answers again", self.server)
        self.why_away, self._pause_s = "", 0.0
        self._forget_older_self()
        return result

    def is_due(self) -> bool:
        """It was away, and may be asked again."""
        return (
            bool(self.why_away) and not self._stopped and not self._lane.busy and self._monotonic_s() >= self._retry_s
        )

    def follow(self, *, stopped: bool) -> None:
        """What the table says of the server. When an administrator has stopped it, its records are handed back. While its lease
        has lapsed, the branch asks it as before: whatever process reaches the store first ends the lapse."""
        if stopped == self._stopped:
            return
        self._stopped, self._retry_s = stopped, self._monotonic_s()
        if stopped:
            self._forget_older_self()
            self._unknown = True  # also if the lane is busy now
            self._end_session()
            self._away("an administrator has stopped it")

    def close(self) -> None:
        """The session ends now, or when a call that hangs returns: its store would take it for a living one, which keeps its
        records."""
        self._end_session()
        self._lane.close(self._drop)

    def _end_session(self) -> None:
        with suppress(LaneBusyError, JmsqError):
            self._lane.run(self._drop, _CLOSE_S)

    # -- in the lane ----------------------------------------------------------------------------------------------
    def _act(self, act: Callable[[Subscriber], T]) -> T:
        if self._unknown:
            self._drop()
        if self._subscriber is None:
            self._subscriber = self._opened()
        try:
            return act(self._subscriber)
        except RecordCorruptError:
            raise
        except (StoreError, SessionEndedException, QueryRunningError):
            self._drop()
            raise

    def _drop(self) -> None:
        """End the session. In a store that cannot be reached it ends by itself."""
        dropped, self._subscriber, self._unknown = self._subscriber, None, False
        if dropped is not None:
            self.generation += 1
            with suppress(StoreError):
                dropped.close()

    def _forget_older_self(self) -> None:
        self.older_self, self._older_self_until_s = None, None

    # -- errors ---------------------------------------------------------------------------------------------------
    def _paused(self, error: Exception, *, lost: bool = False) -> ServerAwayError:
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._retry_s = self._monotonic_s() + self._pause_s
        return self._away(f"{type(error).__name__}: {error}", lost=lost)

    def _away(self, why: str, *, lost: bool = False) -> ServerAwayError:
        if not self.why_away:
            log.warning("server %s is away, its messages wait: %s", self.server, why)
        self.why_away = why
        return AnswerLostError(why) if lost else ServerAwayError(why)
