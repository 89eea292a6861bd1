"""The records that one consumer holds: opened, changed in one physical write, handed over at boundaries.

A boundary is any call of `hand_over`: by the source's latestOffset, a client's receive, or their background thread. Claims stay in
the record; the next owner skips claimed messages. A query also holds its ProgressRecord, for life.

Features: C9, C14, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from spark_jms.claims.servers.stores import is_sibling, label_of, opened_state, operations, read_state, this_process
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import LiveSubscription, recorded_on
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import PROGRESS, QueryProgress, consumers_of, wanted
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import consumer_record, member_record, members_prefix
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError, QueryRunningError, SessionEndedException
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import (
    FencedError,
    Handle,
    Operation,
    OutcomeUnknownError,
    Put,
    RecordHeldError,
    Session,
    Store,
    StoreError,
)

MIN_HOLD_S = 0.05  # an owner keeps a record at least so long, or two idle consumers would only hand it back and forth
REVISIT_S = 1.0  # after so long a consumer with a selector returns to a member without new messages
OPEN_TIMEOUT_S = 15.0  # how long a restarted query waits for its older self to end
_STEP_MS = 250  # between two looks for it


def session_label(destination: str, subscription: str, consumer: str) -> str:
    """How the label of a consumer's session begins, which other processes read."""
    return f"{destination}/{subscription} {consumer}"


@dataclass
class Held:
    handle: Handle | None  # None: the record is shared (shared.py), and has this `version`
    state: RecordSet
    since_s: float
    version: int = 0

    @property
    def epoch(self) -> int:
        return self.version if self.handle is None else self.handle.epoch


class Members:
    """The records that one consumer holds. Not thread-safe: the subscriber's lock guards it. `attached` are the members where the
    consumer has committed in this session; if one of them names another session, this session is stale."""

    shares = False

    def __init__(
        self,
        store: Store,
        destination: str,
        table_id: str,
        subscription: str,
        consumer: str,
        *,
        replayable: bool,
        open_timeout_s: float | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        clock_ms: Callable[[], int] = now_ms,
        is_logged: Callable[[], bool] = lambda: False,
    ) -> None:
        """`is_logged`: the destination has its life-cycle log switched on."""
        self.store = store
        process = (
            f", {this_process(clock_ms())}" if replayable else ""
        )  # for the error that refuses another instance of a query
        self.session: Session = store.connect(session_label(destination, subscription, consumer) + process)
        self.destination, self.subscription, self.consumer = destination, subscription, consumer
        self.table_id, self._open_timeout_s = table_id, open_timeout_s
        self.progress: ProgressRecord | None = None  # a plain client has none: no other process continues for it
        if replayable:
            record = consumer_record(table_id, subscription, consumer)
            self.progress = ProgressRecord(store, self.session, record, f"query {consumer} of {destination}")
        self.held: dict[int, Held] = {}
        self.attached: set[int] = set()
        self._visited: dict[int, tuple[float, int]] = {}
        self._looked_at: set[int] = set()  # given up after the last plan had looked at all their messages
        self._taken_up: set[int] = set()  # granted to us and opened at a boundary; no plan has used them yet
        self._borrowed: set[int] = set()  # asked back from another holder only to acknowledge a claim
        self._undelivered: dict[int, set[str]] = {}  # member -> claims that a write of unknown outcome may have made
        self._fenced: FencedError | None = None  # for good: the session still lists handles that `held` has dropped
        self.pinned: set[int] = set()  # kept although others wait: the next batch needs several members at once
        self.monotonic_s, self._clock_ms, self._is_logged = monotonic_s, clock_ms, is_logged
        self._begin()

    def _begin(self) -> None:
        """For a kind of members with more of its own."""

    @property
    def session_id(self) -> str:
        return self.session.session_id

    def record(self, member: int) -> str:
        return member_record(self.table_id, self.subscription, member)

    def label(self, member: int) -> str:
        """The record set as people know it."""
        return label_of(self.destination, self.subscription, member)

    def open_progress(self) -> QueryProgress:
        """The query's progress; from now on this instance alone commits for it. Raises QueryRunningError."""
        if self.progress is None:
            return QueryProgress()
        with self._unfenced():
            self.progress.open(self._open_timeout_s)
        return self.progress.value

    # -- getting --------------------------------------------------------------------------------------------------
    def acquire(
        self,
        candidates: Collection[int],
        last_sequences: Mapping[int, int],
        *,
        visits_all: bool,
        needed: Set[int],
    ) -> None:
        """Ask for the records that this consumer should hold of these members, and open those it gets. Never waits."""
        self._taken_up.clear()
        infos = self.store.infos(members_prefix(self.table_id, self.subscription))
        holders: dict[int, str | None] = {}
        waiters: dict[int, tuple[str, ...]] = {}
        for member in candidates:
            info = infos.get(self.record(member))
            holders[member], waiters[member] = (info.holder, info.waiters) if info else (None, ())
            if info and info.holder == self.session_id and member not in self.held:
                self.open(member)  # granted since the last call
        now = self.monotonic_s()
        consumers = consumers_of(self.session_id, holders, waiters)
        for member in wanted(self.session_id, holders, waiters, visits_all=visits_all, needed=needed):
            if member in self.held:
                continue
            seen_s, seen_last = self._visited.get(member, (-REVISIT_S, -1))
            fresh = now - seen_s < REVISIT_S and seen_last == last_sequences.get(member, 0)
            if visits_all and fresh and member not in needed:
                continue  # even if it is free: it was left to other consumers
            if not self.open(member) and member in needed and len(holders) >= len(consumers):
                self._borrowed.add(member)

    def borrowed(self) -> set[int]:
        """Held members that another consumer gave back only so that a claim can be acknowledged. It needs them, so nothing
        new is claimed there, or the two would never agree on their shares."""
        return self._borrowed & self.held.keys()

    def granted(self) -> bool:
        """A record was granted to us that no plan has used yet."""
        return bool(self._taken_up & self.held.keys()) or bool(self._granted())

    def _granted(self) -> list[int]:
        prefix = members_prefix(self.table_id, self.subscription)
        mine = [name for name, info in self.store.infos(prefix).items() if info.holder == self.session_id]
        return [member for name in mine if (member := int(name[len(prefix) :])) not in self.held]

    def open(self, member: int) -> bool:
        """True when held now; else the store has queued us for the record."""
        if member in self.held:
            return True
        with self._unfenced():
            try:
                handle = self.session.open(self.record(member), timeout_ms=0)
            except RecordHeldError:
                return False
            try:
                state = opened_state(handle, self.label(member))
            except BaseException:
                with suppress(StoreError):
                    handle.close()
                raise
        try:
            self.check_speaks(state, member)
        except ConsumerClosedException:
            handle.close()
            raise
        self._looked_at.discard(member)
        self.held[member] = Held(handle, state, self.monotonic_s())
        return True

    def check_speaks(self, state: RecordSet, member: int) -> None:
        """Raises ConsumerClosedException when another session speaks for this consumer now."""
        if self.consumer not in state.consumers:
            self.attached.discard(member)  # another consumer swept us: we were slow and had no claim there
        if member in self.attached and not state.speaks_for(self.consumer, self.session_id):
            raise ConsumerClosedException(
                f"another instance of consumer {self.consumer} has taken over {self.label(member)}: this one is stale and "
                "can acknowledge nothing. Stop it."
            )

    def refresh(self) -> None:
        """See again what others may have changed."""

    def state(self, member: int) -> RecordSet:
        """As this consumer holds it, or as last committed."""
        held = self.held.get(member)
        return held.state if held else read_state(self.store, self.record(member), self.label(member))

    def keeps(self, member: int) -> bool:
        """This consumer does for a held member what one of its consumers should do."""
        return True

    def take_up(self, member: int) -> None:
        """Others see from now on that this consumer is there."""
        self.open(member)

    def first_members(self, members: Set[int], live_sessions: Set[str]) -> set[int]:
        """Those that it takes messages of first."""
        return set(members)

    def must_open(self, member: int) -> None:
        """Raises MemberUnavailableError when the store has queued us for the record."""
        if not self.open(member):
            raise MemberUnavailableError(
                f"another consumer holds {self.label(member)} and did not hand it over in time: try again, or see who "
                "holds it with `jmsq claims`"
            )

    def attached_state(self, member: int) -> RecordSet:
        """The state of a held member, with this session speaking for the consumer."""
        held, is_on = self.held[member], self._is_logged()
        held.state = state = held.state.logging(is_on=is_on, now_ms=self._clock_ms() if is_on else 0)
        for claim in self._undelivered.get(member, ()):
            state = state.release(claim, delivered=False)
        return state if member in self.attached else state.attach(self.consumer, self.session_id)

    # -- changing -------------------------------------------------------------------------------------------------
    def commit(self, changed: Mapping[int, RecordSet], progress: QueryProgress | None = None) -> None:
        """Write the new states of held members, and the query's progress, in one atomic change. Raises
        ConsumerClosedException when we are fenced. After an OutcomeUnknownError, what the store has counts: the records are opened
        again, behind which no earlier write can follow."""
        real = {m: state for m, state in changed.items() if state is not self.held[m].state}
        own = self.progress
        if not real and (own is None or progress in (None, own.value)):
            return
        writes: dict[Handle, list[Operation]] = {}
        for m, state in real.items():
            handle = self.held[m].handle
            assert handle is not None
            writes[handle] = operations(self.held[m].state, state)
        if own is not None:
            progress = progress or self.open_progress()
            writes |= own.operations(progress)
        try:
            with self._unfenced():
                self.session.commit(writes)
        except OutcomeUnknownError:
            self._forget_unknown(real)
            raise
        for member, state in real.items():
            self.held[member].state = state
        self._note_written(real, progress)

    def _note_written(self, members: Iterable[int], progress: QueryProgress | None) -> None:
        """The store has what is held of these members now."""
        if self.progress is not None and progress is not None:
            self.progress.value = progress
        for member in members:
            state = self.held[member].state
            if member in self._undelivered:
                self._undelivered[member] &= state.claims.keys()
            if state.speaks_for(self.consumer, self.session_id):
                self.attached.add(member)

    def _forget_unknown(self, changed: Mapping[int, RecordSet]) -> None:
        for member, state in changed.items():
            made = state.claims.keys() - self.held[member].state.claims.keys()
            self._undelivered.setdefault(member, set()).update(made)
            with suppress(StoreError, SessionEndedException):
                self.forget(member)
        if self.progress is not None:
            with suppress(StoreError):
                self.progress.close()

    @contextmanager
    def _unfenced(self) -> Iterator[None]:
        """Around each call of the session and its handles: a process that slept may find in any of them that it was fenced. That
        raises SessionEndedException. Another thread may have found out first, so every later call raises it too."""
        try:
            if self._fenced is not None:
                raise self._fenced
            yield
        except FencedError as error:
            self.held.clear()
            self._fenced = error
            raise SessionEndedException(
                f"the session of consumer {self.consumer} ended ({error}): its claims are or will be revoked. "
                "Close this consumer and create a new one."
            ) from error

    # -- giving ---------------------------------------------------------------------------------------------------
    def contested(self) -> set[int]:
        """Held members that other consumers wait for and that were held long enough: this boundary hands them over."""
        now = self.monotonic_s()
        with self._unfenced():
            return {
                m
                for m, h in self.held.items()
                if m not in self.pinned and now - h.since_s >= MIN_HOLD_S and h.handle and h.handle.waiters()
            }

    def hand_over(self, last_sequences: Mapping[int, int]) -> int:
        """Hand over the records that other consumers wait for; returns how many. Also opens records that were granted to
        us, so that a later boundary can hand them over even if this consumer does not plan for a long time."""
        now, given = self.monotonic_s(), 0
        for member in self._granted():
            if self.open(member):
                self._taken_up.add(member)
        for member in self.contested():
            self._visited[member] = (now, last_sequences.get(member, 0))
            self.forget(member)
            given += 1
        return given

    def leave(self, member: int, last_sequence: int, *, looked_at: bool = False) -> None:
        """Close the record although no consumer waits for it; return when messages arrive, or after a while. `looked_at`: this
        consumer can have none of its messages now."""
        self._visited[member] = (self.monotonic_s(), last_sequence)
        self.forget(member)
        if looked_at:
            self._looked_at.add(member)

    def has_looked_at(self, member: int) -> bool:
        """This consumer holds the member's record, or has left it with nothing to have."""
        return member in self.held or member in self._looked_at

    def forget(self, member: int) -> None:
        self._borrowed.discard(member)
        held = self.held.pop(member, None)
        if held is not None and held.handle is not None:
            with self._unfenced():
                held.handle.close()

    def has_session(self) -> bool:
        """False: the session has ended, and this consumer can only be closed."""
        return self._fenced is None and self.session_id in self.store.sessions()

    def leave_all(self) -> None:
        """Hold nothing and wait for nothing, until this consumer asks again."""
        for member in list(self.held):
            self.forget(member)
        with self._unfenced():
            for name, info in self.store.infos(members_prefix(self.table_id, self.subscription)).items():
                if self.session_id in (info.holder, *info.waiters):
                    self.session.cancel(name)

    def close(self) -> None:
        self.held.clear()
        self.session.close()


class ProgressRecord:
    """The record of a query's progress: only its owner commits claims and acknowledgements. It is never handed over; closing the
    session frees it. Not thread-safe: the subscriber's lock guards it."""

    def __init__(self, store: Store, session: Session, record: str, label: str) -> None:
        self._store, self._session, self._record, self._label = store, session, record, label
        self.handle: Handle | None = None
        self.value = QueryProgress()

    def open(self, timeout_s: float | None = None) -> None:
        """Opens the record if it is not open. Raises QueryRunningError when another instance of the query still lives after
        `timeout_s` (None: OPEN_TIMEOUT_S)."""
        if self.handle is not None:
            return
        deadline = time.monotonic() + (OPEN_TIMEOUT_S if timeout_s is None else timeout_s)
        while True:
            try:
                handle = self._session.open(self._record, timeout_ms=0)
                break
            except RecordHeldError as error:
                if time.monotonic() < deadline:
                    time.sleep(_STEP_MS / 1000)
                    continue
                self._session.cancel(self._record)
                owner = self._store.sessions().get(error.holder or "")
                raise QueryRunningError(self._running(owner.label if owner else "")) from error
        try:
            self.value = QueryProgress.from_bytes(handle.read(PROGRESS), self._label)
        except BaseException:
            handle.close()
            raise
        self.handle = handle

    def _running(self, session: str) -> str:
        advice = (
            "It is a query of this very application, perhaps of a Spark session that was stopped without query.stop(): stop it"
            if is_sibling(session)
            else "Stop the other instance first, which may be a query of this very application"
        )
        return (
            f"another instance of {self._label} is running (session {session or 'unknown'}): nothing was claimed. {advice}; if "
            "this checkpointLocation is a copy, start with a fresh one."
        )

    def close(self) -> None:
        """To be read again. Raises StoreError; it is closed all the same."""
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.close()

    def operations(self, after: QueryProgress) -> dict[Handle, list[Operation]]:
        """Its part of a write. There always is one, so that a fenced instance can commit nothing."""
        assert self.handle is not None
        return {self.handle: [Put(PROGRESS, after.to_bytes())]}


class BacklogReader:
    """Reads the backlog of a consumer's subscription, also on members that other consumers hold. Not thread-safe: the subscriber's
    lock guards it."""

    def __init__(self, store: Store, members: Members, live: LiveSubscription | None, server: str = HOME) -> None:
        self._store, self._members, self._live, self._server = store, members, live, server

    def backlog(self, snapshot: Snapshot) -> dict[int, int]:
        """member -> unfinished messages."""
        return {
            member: self.unfinished(self.state(member), snapshot, member, snapshot.last_sequence(member)).count
            for member in recorded_on(snapshot.destination, self._server, self._members.subscription)
        }

    def refused(self, snapshot: Snapshot, refused: Mapping[int, Ranges]) -> dict[int, int]:
        """member -> how many of these messages, which the consumer's selector refuses, are unfinished."""
        out = {}
        for member, messages in refused.items():
            unfinished = self.unfinished(self.state(member), snapshot, member, snapshot.last_sequence(member))
            if left := messages & unfinished:
                out[member] = left.count
        return out

    def state(self, member: int) -> RecordSet:
        """See `Members.state`."""
        return self._members.state(member)

    def unfinished(self, state: RecordSet, snapshot: Snapshot, member: int, last: int) -> Ranges:
        """The messages up to `last` that the subscription has not finished."""
        if self._live is not None:
            floor = self._live.subscription.floors.get(member, 0)
        else:
            floor = snapshot.destination.start_floor(self._members.subscription, member)
        return state.unfinished(floor + 1, last) - snapshot.lost_of(member)
