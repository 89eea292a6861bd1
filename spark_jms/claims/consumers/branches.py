"""The branches of one consumer, through which it asks what it has on each server: in the server's own thread, for a limited time.

The one branch of a destination without servers is a BranchInPlace: its calls run in the calling thread, and raise what the store
raises. All that follows is of servers.

A call of Branches reaches the servers that answer; what a server that is away means depends on the call:

    `answers`, `each`, `any`   the server has no part in it
    `must`                     MemberUnavailableError: its messages cannot be acknowledged now
    `insist`                   asked again for RESUME_S, for a batch that is to be delivered

A consumer that is pinned to a server ends with it, whichever the call. What becomes of a Branch when its server fails:

    the branch is   a call ...                                   becomes
    -------------   ----------                                   -------
    closed          opens the store and a session, then acts     open, or away when that fails
    open            acts                                         open; away when the store fails or the session has ended
                    does not return in time                      busy
    busy            fails at once                                open when the call returns; closed if the call wrote,
                                                                 because its outcome is unknown here
    away            fails at once until its pause is over        closed
    stopped         fails at once                                closed, when the table says that it is started again

A closed branch that opens again is to the store what a restarted consumer is: a new session that attaches to the record sets. A
query finds its claims there; those of a plain client ended with its session. `generation` tells sessions apart.

Features: C9, D3, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, KeysView, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.server_part import ServerPart
from spark_jms.claims.servers.timed_stores import AnswerLostError, Awaited, Runs, ServerAwayError, StoreThreadBusyError
from spark_jms.core.destinations.servers import HOME, READ_MS, WRITE_MS
from spark_jms.core.destinations.subscriptions import record_server, record_servers, recorded_on
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.batch import Batch, MemberPick
from spark_jms.errors import (
    ConsumerClosedException,
    DestinationReplacedError,
    InvalidDestinationError,
    JmsqError,
    MemberLostException,
    MemberUnavailableError,
    OptionError,
    QueryRunningError,
    SessionEndedException,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.store import OutcomeUnknownError, RecordCorruptError, StoreError

T = TypeVar("T")
log = logging.getLogger("spark_jms")
ANSWER_S = READ_MS / 1000  # a server that does not answer for so long is left out of a batch
WRITE_S = WRITE_MS / 1000  # the same for a write, whose outcome is unknown then
ACKNOWLEDGE_S = 15.0
RESUME_S = 15.0  # how long a restarted query waits for a server of the batch that it has to deliver again
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 5.0
_CLOSE_S = 5.0
_OLDER_SELF_S = 15.0  # how long an older session of this query may take to end
_POLL_S = 0.05


class Branch:
    """A consumer's branch on one server: its session and records there. Not thread-safe: the subscriber's lock guards it. `opened`
    makes a consumer in a new session; `note_late` is told of each call that is late or fails."""

    def __init__(
        self,
        server: str,
        opened: Callable[[], ServerPart],
        store_thread: Runs,
        monotonic_s: Callable[[], float] = time.monotonic,
        note_late: Callable[[], object] = lambda: None,
    ) -> None:
        self.server, self.generation = server, 0
        self._note_late = note_late
        self.why_away = ""  # "" while it answers
        self._opened, self._store_thread, self._monotonic_s = opened, store_thread, monotonic_s
        self._stopped = False
        # None while it is closed.
        self.part: ServerPart | None = None
        self._unknown = False  # a call that writes did not return in time
        self._pause_s, self._retry_s = 0.0, monotonic_s()
        # It is away because an older session of this query lives there.
        self.older_self: QueryRunningError | None = None
        self._older_self_until_s: float | None = None

    def call(self, act: Callable[[ServerPart], T], wait_s: float, *, writes: bool = False) -> T:
        """Raises ServerAwayError, which is an AnswerLostError when a write may have been kept, and every error of `act` that is not
        the store's."""
        return self.begin(act, writes=writes)(wait_s)

    def begin(self, act: Callable[[ServerPart], T], *, writes: bool = False) -> Callable[[float], T]:
        """The first half of `call`, which waits for nothing, so that several servers can be asked at once. Returns the second: it
        takes the answer, and has to be called before the next call."""
        why_away = self.why_away

        def refused(wait_s: float) -> T:
            raise ServerAwayError(why_away)

        if self._stopped or self._monotonic_s() < self._retry_s:
            return refused
        try:
            begun = self._store_thread.start(lambda: self._act(act))
        except StoreThreadBusyError:
            return partial(self._answer, None, writes)
        return partial(self._answer, begun, writes)

    def _answer(self, begun: Awaited[T] | None, writes: bool, wait_s: float) -> T:
        """`begun` None: other work is under way in the thread."""
        try:
            if begun is None:
                raise StoreThreadBusyError()
            result = begun.wait(wait_s)
        except StoreThreadBusyError:
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
            bool(self.why_away)
            and not self._stopped
            and not self._store_thread.busy
            and self._monotonic_s() >= self._retry_s
        )

    def follow(self, *, stopped: bool) -> None:
        """What the table says of the server. When an administrator has stopped it, its session ends. While its lease
        has lapsed, the branch asks it as before: whatever process reaches the store first ends the lapse."""
        if stopped == self._stopped:
            return
        self._stopped, self._retry_s = stopped, self._monotonic_s()
        if stopped:
            self._forget_older_self()
            self._unknown = True  # also if the thread is busy now
            self._end_session()
            self._away("an administrator has stopped it")

    def close(self) -> None:
        """The session ends now, or when a call that hangs returns: its store would take it for a living one, which keeps its
        records."""
        self._end_session()
        self._store_thread.close(self._drop)

    def _end_session(self) -> None:
        with suppress(StoreThreadBusyError, JmsqError):
            self._store_thread.run(self._drop, _CLOSE_S)

    # -- in the store's thread ------------------------------------------------------------------------------------
    def _act(self, act: Callable[[ServerPart], T]) -> T:
        if self._unknown:
            self._drop()
        if self.part is None:
            self.part = self._opened()
        try:
            return self.part.ask(act)
        except RecordCorruptError:
            raise
        except (StoreError, SessionEndedException, QueryRunningError):
            self._drop()
            raise

    def _drop(self) -> None:
        """End the session. In a store that cannot be reached it ends by itself."""
        dropped, self.part, self._unknown = self.part, None, False
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


class BranchInPlace:
    """The only branch of a destination without servers. Its session is that of `part`, for good. Not thread-safe: the subscriber's
    lock guards it."""

    generation, why_away, older_self = 0, "", None

    def __init__(self, part: ServerPart) -> None:
        self.server, self.part = HOME, part

    def call(self, act: Callable[[ServerPart], T], wait_s: float, *, writes: bool = False) -> T:
        """Raises what `act` does."""
        return self.part.ask(act)

    def begin(self, act: Callable[[ServerPart], T], *, writes: bool = False) -> Callable[[float], T]:
        """`act` runs when the answer is taken."""
        return lambda wait_s: self.part.ask(act)

    def is_due(self) -> bool:
        return False

    def close(self) -> None:
        self.part.close()


class Branches(Mapping[str, Branch | BranchInPlace]):
    """The branches of one consumer, by server. Not thread-safe: the consumer's lock guards it. `opened` makes the part on a
    server, in a new session; `note_late` is told of the server whose answer is late or fails."""

    def __init__(
        self,
        table: DeltaLog,
        table_id: str,
        subscription: str,
        consumer: str,
        settings: ConsumerSettings,
        opened: Callable[[str], ServerPart],
        store_thread: Callable[[str], Runs],
        monotonic_s: Callable[[], float],
        note_late: Callable[[str], object],
    ) -> None:
        self._note_late = note_late
        self._table, self._table_id, self._subscription, self._consumer = table, table_id, subscription, consumer
        self._settings, self._opened, self._store_thread, self._monotonic_s = (
            settings,
            opened,
            store_thread,
            monotonic_s,
        )
        self._branches: dict[str, Branch | BranchInPlace] = {}
        self.in_place = False

    def __getitem__(self, server: str) -> Branch | BranchInPlace:
        return self._branches[server]

    def __iter__(self) -> Iterator[str]:
        return iter(self._branches)

    def __len__(self) -> int:
        return len(self._branches)

    def keys(self) -> KeysView[str]:
        """Those of the dictionary: a Mapping's take ten calls for a difference."""
        return self._branches.keys()

    def stay_in_place(self, part: ServerPart) -> None:
        """The destination is on no servers. All record sets that this consumer meets stay in the domain's own store."""
        self._branches, self.in_place = {HOME: BranchInPlace(part)}, True

    # -- which ----------------------------------------------------------------------------------------------------
    def follow(self, batch: Batch | None = None) -> None:
        """One branch for each server that the destination is on now and that this consumer takes messages of; `batch` must
        have none of others."""
        if self.in_place:
            return  # its part finds out
        snapshot = self._table.refresh()
        if snapshot.table_id != self._table_id:
            raise DestinationReplacedError()
        only, placed = self._settings.server, record_servers(snapshot.destination, self._subscription)
        servers = [server for server in placed if only in (None, server)]
        if not servers:
            raise self._lost("its member there was removed")
        if only is not None and batch is not None:
            self._check_within(batch, only)
        for server in self._branches.keys() - set(servers):
            self._branches.pop(server).close()  # its member was empty, so nothing is left to acknowledge
        for server in servers:
            if server not in self._branches:
                opened, late = partial(self._opened, server), partial(self._note_late, server)
                thread = self._store_thread(f"server {server}")
                self._branches[server] = Branch(server, opened, thread, self._monotonic_s, late)
            branch = self._branches[server]
            if isinstance(branch, Branch):
                branch.follow(stopped=server in snapshot.destination.stopped)

    def members_on(self, server: str) -> list[int]:
        return recorded_on(self._table.snapshot.destination, server, self._subscription)

    def server_of(self, member: int) -> str:
        return HOME if self.in_place else record_server(self._table.snapshot.destination, self._subscription, member)

    def by_server(self, parts: Mapping[str, Mapping[int, Ranges]]) -> dict[str, dict[str, dict[int, Ranges]]]:
        """Claim -> member -> messages, for each server."""
        found: dict[str, dict[str, dict[int, Ranges]]] = {}
        for claim, members in parts.items():
            for member, picks in members.items():
                found.setdefault(self.server_of(member), {}).setdefault(claim, {})[member] = picks
        return found

    # -- asking them ----------------------------------------------------------------------------------------------
    def answers(self, server: str, act: Callable[[ServerPart], T], *, writes: bool = False) -> Iterator[T]:
        """The answer; none when the server is away. Raises MemberLostException when this consumer is pinned to it."""
        pinned = self._settings.pinned
        try:
            answer = self._branches[server].call(act, WRITE_S if writes or pinned else ANSWER_S, writes=writes)
        except ServerAwayError as error:
            if pinned:
                raise self._lost(str(error)) from error
            return
        yield answer

    def each(self, act: Callable[[ServerPart], T]) -> list[T]:
        return [answer for server in self._branches for answer in self.answers(server, act)]

    def any(self, act: Callable[[ServerPart], bool]) -> bool:
        return any(self.each(act))

    def must(self, server: str, act: Callable[[ServerPart], T]) -> T:
        """Raises MemberUnavailableError; MemberLostException when this consumer is pinned to the server."""
        name, branch = self._table.name, self._branches.get(server)
        if branch is None:
            raise MemberUnavailableError(f"{name} is not on server {server} any more: the message went with its member")
        try:
            return branch.call(act, ACKNOWLEDGE_S, writes=True)
        except ServerAwayError as error:
            if self._settings.pinned:
                raise self._lost(str(error)) from error
            raise MemberUnavailableError(
                f"{name}: server {server} is away ({error}): nothing is known to be acknowledged there; try again"
            ) from error

    def insist(
        self, acts: Mapping[str, Callable[[ServerPart], T]], *, writes: bool = False, waits: Collection[str] = ()
    ) -> tuple[dict[str, T], dict[str, ServerAwayError]]:
        """For a batch that is to be delivered: asks all these servers at once, until no other session has their records open, and
        those of `waits` answer; for RESUME_S at most. Returns the answers, and why the other servers are away. Raises
        MemberUnavailableError."""
        deadline = self._monotonic_s() + RESUME_S
        found: dict[str, T] = {}
        away: dict[str, ServerAwayError] = {}
        while left := acts.keys() - found.keys() - away.keys():
            begun = {
                server: self._branches[server].begin(acts[server], writes=writes) for server in acts if server in left
            }
            asked_s, held = self._monotonic_s(), []
            for server, answer in begun.items():
                try:
                    found[server] = answer(max(asked_s + ACKNOWLEDGE_S - self._monotonic_s(), 0.0))
                except MemberUnavailableError as error:
                    held.append(error)
                except ServerAwayError as error:
                    if server not in waits or self._monotonic_s() > deadline:
                        away[server] = error
            if held and self._monotonic_s() > deadline:
                raise held[0]
            if acts.keys() - found.keys() - away.keys():
                time.sleep(_POLL_S)
        return found, away

    # -- errors ---------------------------------------------------------------------------------------------------
    def _check_within(self, batch: Batch, only: str) -> None:
        elsewhere = sorted({self.server_of(member) for member in batch.members} - {only})
        if elsewhere:
            raise OptionError(
                f"the checkpoint's last batch has messages of {self._table.name} on server {', '.join(elsewhere)}, and the query "
                f"names {only}@{self._table.name}: they would never be acknowledged. Name {self._table.name} again, or start "
                "with a fresh checkpointLocation"
            )

    def ended(self, server: str, why: str) -> ConsumerClosedException:
        """For a client that has unfinished messages there."""
        return ConsumerClosedException(
            f"consumer {self._consumer} lost server {server}, on which it has messages of {self._table.name} that are not "
            f"acknowledged ({why}): they go to other consumers, flagged. Close this consumer and create a new one."
        )

    def _lost(self, why: str) -> JmsqError:
        where = f"{self._settings.server}@{self._table.name}"
        if self._settings.pinned:
            again = "Messages that it has not acknowledged come again, flagged."
            if self._settings.live is not None:
                again = "Its subscription is not durable: it ends with its last consumer."
            return MemberLostException(
                f"consumer {self._consumer} has lost {where}: {why}. {again} Close this consumer and create a new one"
            )
        return InvalidDestinationError(f"{where} cannot be consumed: {why}")


class UnfinishedMessages:
    """What a client has claimed on each server and not finished. A plain client keeps nothing across sessions: when a server loses
    the session in which it has delivered messages, others get them, so the client's consumer must end. A branch in place never
    changes its session. Not thread-safe."""

    def __init__(self, branches: Branches) -> None:
        self._branches = branches
        self._claimed_in: dict[str, int] = {}  # server -> generation in which messages were claimed
        self._picks: dict[int, Ranges] = {}  # by member

    def claimed(self, server: str, members: Mapping[int, MemberPick]) -> None:
        if self._branches.in_place:
            return
        self._claimed_in[server] = self._branches[server].generation
        for member, pick in members.items():
            self._picks[member] = self._picks.get(member, EMPTY) | pick.picks

    def finished(self, member: int, picks: Ranges) -> None:
        if member in self._picks and (left := self._picks.pop(member) - picks):
            self._picks[member] = left

    def lost(self) -> ConsumerClosedException | None:
        """A server has lost them; None: none has."""
        for member in self._picks:
            server = self._branches.server_of(member)
            branch = self._branches.get(server)
            if branch is None:
                return self._branches.ended(server, "its member was removed")
            if branch.generation != self._claimed_in[server]:
                return self._branches.ended(server, branch.why_away or "it answers again")
        return None
