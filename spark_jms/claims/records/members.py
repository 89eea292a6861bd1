"""The record sets that one consumer follows: looked at before each plan, and changed together in one physical write.

A consumer reads of a record set only what has changed since its last look. It plans on that state and commits the journal of its
plan, which the store does to the newest state (shared.py). So no consumer waits for another one, and none writes over what another
one has written. An administrator, and a consumer of an earlier release, opens a record set for itself: a consumer goes on without
it meanwhile. A query also holds its ProgressRecord, for life.

Features: C9, C14, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from spark_jms.claims.records.shared import RULE, Made, PlanOutdatedError, asked, decided, follow, raise_refusal
from spark_jms.claims.servers.stores import is_sibling, label_of, this_process
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import LiveSubscription, recorded_on
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import PROGRESS, QueryProgress, preferred
from spark_jms.core.records.journal import PlannedChange, found_dead
from spark_jms.core.records.record_set import Noted, RecordSet
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
    RecordView,
    RuleCall,
    Session,
    Store,
    StoreError,
)

SHORT_S = 0.2  # an administrator has a record set open for less
LINE_S = 0.5  # how long a plan waits in line for it
CHANGE_S = 15.0  # how long a change waits for it
_PAUSE_S = 0.01
OPEN_TIMEOUT_S = 15.0  # how long a restarted query waits for its older self to end
_STEP_MS = 250  # between two looks for it


class RecordInUseError(MemberUnavailableError):
    """Another session has opened a record set, and nothing was changed."""


def session_label(destination: str, subscription: str, consumer: str) -> str:
    """How the label of a consumer's session begins, which other processes read."""
    return f"{destination}/{subscription} {consumer}"


@dataclass(frozen=True)
class KnownRecord:
    """A record set as a consumer has last seen it. `epoch` is the version of its record then."""

    state: RecordSet
    epoch: int


class Members:
    """The record sets that one consumer follows. Not thread-safe: the subscriber's lock guards it. `known` has them by member, but
    for those that another session has opened. `attached` are the members where the consumer has committed in this session; if one of
    them names another session, this session is stale."""

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
        self.known: dict[int, KnownRecord] = {}
        self.attached: set[int] = set()
        self._followed: set[int] = set()
        self._met: dict[int, tuple[int, float]] = {}  # opened by another session: with which version, and since when
        self._opened: dict[int, Handle] = {}  # by this session, in line behind a consumer of an earlier release
        self._is_planned = False  # what is opened is for the change of a plan, which comes with the next call
        self._committed: dict[int, tuple[Noted, ...]] = {}  # of each member: the journal that was committed last
        self._undelivered: dict[int, set[str]] = {}  # member -> claims that a write of unknown outcome may have made
        self._finished: dict[int, dict[str, Ranges]] = {}  # member -> what the next change of it acknowledges, by claim
        self._fenced: FencedError | None = None  # for good
        self._monotonic_s, self._clock_ms, self._is_logged = monotonic_s, clock_ms, is_logged

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

    # -- following ------------------------------------------------------------------------------------------------
    def follow(self, members: Collection[int]) -> None:
        """Know these as they are now, and no others."""
        self._followed = set(members)
        self._close_opened()
        for member in self.known.keys() - set(members):
            del self.known[member]
        self._look(members)

    def have_changed(self) -> bool:
        """Others have changed one since this consumer has seen it. Cheap enough for ten calls a second."""
        infos = self.store.infos(members_prefix(self.table_id, self.subscription))
        for member in self._followed:
            known, info = self.known.get(member), infos.get(self.record(member))
            if known is None or (info is not None and info.epoch != known.epoch):
                return True
        return False

    def refresh(self) -> None:
        """Know those that are followed as they are now, but for those that another session has opened."""
        self._look(self._followed, waits=False)

    def open(self, member: int) -> bool:
        """Whether it is known; False: another session has opened it."""
        if member not in self.known:
            self._look([member])
        return member in self.known

    def must_open(self, member: int) -> None:
        """Raises RecordInUseError while another session has opened it."""
        if not self.open(member):
            raise RecordInUseError(
                f"another session has opened {self.label(member)}: try again, or see who it is with `jmsq claims`"
            )

    def state(self, member: int) -> RecordSet:
        """As it is now, also while another session has it open."""
        with self._unfenced():
            view = self.session.look([self.record(member)])[self.record(member)]
        return follow(self.record(member), view.objects, self.label(member))

    def _look(self, members: Collection[int], *, waits: bool = True) -> None:
        if not members:
            return
        records = {member: self.record(member) for member in members}
        with self._unfenced():
            views = self.session.look(list(records.values()))
        for member, record in records.items():
            view = views[record]
            if view.holder is not None and waits and self._is_kept_open(member, view.version):
                view = self._view_in_line(member, view)
            if view.holder is None:
                self._see(member, view)
            else:
                self.known.pop(member, None)

    def _see(self, member: int, view: RecordView) -> None:
        self._know(member, follow(self.record(member), view.objects, self.label(member)), view.version)

    def _know(self, member: int, state: RecordSet, version: int) -> None:
        state = state.with_journal(())
        if self._is_logged():
            state = state.logging(is_on=True, now_ms=self._clock_ms())
        self._check_speaks(state, member)
        self.known[member] = KnownRecord(state, version)

    def _is_kept_open(self, member: int, version: int) -> bool:
        """Another session has it open for longer than administrators do: it is a consumer of an earlier release, which hands it over
        to who waits in line. The answer is yes once in a while: a plan without the member has its turn, too."""
        now = self._monotonic_s()
        met, since = self._met.get(member, (0, 0.0))
        if met == version and now - since >= SHORT_S:
            del self._met[member]
            return True
        if met != version:
            self._met[member] = version, now
        return False

    def _view_in_line(self, member: int, view: RecordView) -> RecordView:
        """As it is once this session has it open, until the plan is written; the same view when that does not come soon."""
        try:
            handle = self._open_in_line(self.record(member), LINE_S)
        except RecordHeldError:
            return view
        self._opened[member] = handle
        return RecordView(handle.epoch, handle.objects())

    def _open_in_line(self, record: str, limit_s: float) -> Handle:
        """Raises RecordHeldError."""
        with self._unfenced():
            try:
                return self.session.open(record, timeout_ms=int(limit_s * 1000))
            except RecordHeldError:
                self.session.cancel(record)
                raise

    def planned(self) -> None:
        """The call that ends now has made a plan, and the next one writes it."""
        self._is_planned = True

    def end_call(self) -> None:
        """What was opened in line in the call and not changed is closed, or no other consumer could have it; after a plan, when the
        next call ends."""
        if not self._is_planned:
            self._close_opened()
        self._is_planned = False

    def _close_opened(self) -> None:
        while self._opened:
            with suppress(StoreError):
                self._opened.popitem()[1].close()

    def _check_speaks(self, state: RecordSet, member: int) -> None:
        """Raises ConsumerClosedException when another session speaks for this consumer now."""
        if self.consumer not in state.consumers:
            self.attached.discard(member)  # another consumer swept us: we were slow and had no claim there
        if member in self.attached and not state.speaks_for(self.consumer, self.session_id):
            raise ConsumerClosedException(
                f"another instance of consumer {self.consumer} has taken over {self.label(member)}: this one is stale and "
                "can acknowledge nothing. Stop it."
            )

    # -- sharing --------------------------------------------------------------------------------------------------
    def attached_state(self, member: int) -> RecordSet:
        """The state of a known member, with this session speaking for the consumer, and with what `finish` was told of. Raises
        ConsumerClosedException when the consumer does not hold that any more."""
        known, is_on = self.known[member], self._is_logged()
        state = known.state.logging(is_on=is_on, now_ms=self._clock_ms() if is_on else 0)
        for claim in self._undelivered.get(member, ()):
            state = state.release(claim, delivered=False)
        if member not in self.attached:
            state = state.attach(self.consumer, self.session_id)
        for claim, part in self._finished.get(member, {}).items():
            state = state.acknowledge(self.consumer, self.session_id, claim, known.epoch, self._clock_ms(), part)
        return state

    def finish(self, parts: Mapping[str, Mapping[int, Ranges]]) -> None:
        """The next change of each member acknowledges these parts of open claims. Thread-safe, as `unfinished` is."""
        finished: dict[int, dict[str, Ranges]] = {}
        for claim, members in parts.items():
            for member, part in members.items():
                finished.setdefault(member, {})[claim] = part
        self._finished = finished

    @property
    def unfinished(self) -> Set[int]:
        """The members of which `finish` was told, where the store does not have all of that as finished yet."""
        return set(self._finished)

    def attach(self, member: int) -> None:
        """Others see from now on that this consumer is there."""
        if self.open(member):
            self.commit({member: self.attached_state(member)})

    def keeps(self, member: int) -> bool:
        """Of the consumers of this member that live, this one does what one of them should do: writing rows to their tables."""
        living = self.store.sessions().keys() & set(self.known[member].state.consumers.values())
        return not living or min(living) == self.session_id

    def first_members(self, members: Set[int], live_sessions: Set[str]) -> set[int]:
        """Those that this consumer takes messages of first."""
        beside = {
            consumer
            for member in members
            for consumer, session in self.known[member].state.consumers.items()
            if session in live_sessions
        }
        return preferred(self.consumer, beside, members)

    def turn(self, newest: int) -> int:
        """Of the live consumers that have no message, in an order that changes with the `newest` one, the place of this one."""
        live = self.store.sessions().keys()
        states = [known.state for known in self.known.values()]
        there = {consumer for state in states for consumer, session in state.consumers.items() if session in live}
        busy = {claim.consumer for state in states for claim in state.claims.values()}
        idle = sorted(there - busy | {self.consumer})
        return (idle.index(self.consumer) - newest) % len(idle)

    # -- changing -------------------------------------------------------------------------------------------------
    def commit(
        self, changed: Mapping[int, RecordSet], progress: QueryProgress | None = None, *, wait_s: float | None = None
    ) -> None:
        """What led to these states is done to the newest ones, and the query's progress written, in one atomic change. Raises
        ConsumerClosedException, PlanOutdatedError, and RecordInUseError when another session has a record set open for `wait_s`
        (None: CHANGE_S). After an OutcomeUnknownError, what the store has counts."""
        journals = {member: new for member, state in changed.items() if (new := self._new(member, state))}
        own, held = self.progress, dict[Handle, list[Operation]]()
        if not journals and (own is None or progress in (None, own.value)):
            return
        if own is not None:
            progress = progress or self.open_progress()
            held = own.operations(progress)
        states = {member: self.known[member].state for member in journals if member in self.known}
        dead = set[str]().union(*(found_dead(state, journals[member]) for member, state in states.items()))
        change = PlannedChange(
            {self.record(member): new for member, new in journals.items()},
            dead - {self.session_id},
            {self.record(member): changed[member].clears for member in journals},
        )
        try:
            answer, made = self._asked(change, held, CHANGE_S if wait_s is None else wait_s)
            raise_refusal(answer)
        except OutcomeUnknownError:
            self._forget_unknown({member: changed[member] for member in states})
            raise
        except PlanOutdatedError:
            for member in states:
                del self.known[member]  # to be seen as they are now, or it would be asked for the same again
            raise
        finally:
            self._close_opened()
        for member in journals:
            self._committed[member] = changed[member].journal or ()
        self._see_written({member: self.record(member) for member in journals}, made)
        self._note_written(journals, progress)

    def _see_written(self, records: Mapping[int, str], made: Made) -> None:
        """`made`: of which the write has said it."""
        if missing := [record for record in records.values() if record not in made]:
            with self._unfenced():
                views = self.session.look(missing)
        for member, record in records.items():
            if record in made:
                self._know(member, *made[record])
            else:
                self._see(member, views[record])  # also if an administrator has opened it meanwhile

    def _new(self, member: int, state: RecordSet) -> tuple[Noted, ...]:
        """What led to this state since the last commit; () when that is nothing of its own."""
        journal, committed = state.journal or (), self._committed.get(member, ())
        if committed and len(journal) >= len(committed) and journal[len(committed) - 1] is committed[-1]:
            journal = journal[len(committed) :]
        return journal if any(noted.method != "logging" for noted in journal) else ()

    def _asked(
        self, change: PlannedChange, held: Mapping[Handle, Sequence[Operation]], limit_s: float
    ) -> tuple[bytes, Made]:
        """The rule's answer, and what it has made. What a session keeps open is opened in line, and changed by this one."""
        began_s = since_s = self._monotonic_s()
        holder: str | None = None
        writes, rest = {**held}, change
        opened = [self._opened[member] for member in self._opened if self.record(member) in change.journals]
        while True:
            for handle in opened:
                writes[handle], _ = decided(change, handle.name, handle.objects(), self.store.sessions().keys())
                rest = rest.without(handle.name)
            try:
                with self._unfenced():
                    if rest.journals:
                        return asked(rest, partial(self._by_rule, list(rest.journals), writes))
                    self.session.commit(writes)
                    return b"", {}
            except RecordHeldError as error:
                now, opened = self._monotonic_s(), []
                if error.holder != holder:
                    holder, since_s = error.holder, now
                if now - since_s < SHORT_S:
                    time.sleep(_PAUSE_S)
                    continue
                try:
                    opened = [self._open_in_line(error.name, max(limit_s - (now - began_s), 0.0))]
                except RecordHeldError:
                    raise RecordInUseError(
                        f"another session has had {error.name} open for {limit_s:g} s: nothing was changed; see who it is "
                        "with `jmsq claims`, and try again"
                    ) from error
                self._opened[self._member_of(error.name)] = opened[0]

    def _by_rule(self, names: Sequence[str], held: Mapping[Handle, Sequence[Operation]], argument: bytes) -> bytes:
        return self.session.change(names, RuleCall(RULE, argument), held)

    def _member_of(self, record: str) -> int:
        return int(record.rsplit("/", 1)[1])

    def _note_written(self, members: Iterable[int], progress: QueryProgress | None) -> None:
        """The store has what is known of these members now."""
        if self.progress is not None and progress is not None:
            self.progress.value = progress
        finished = self._finished
        for member in members:
            state = self.known[member].state
            if member in self._undelivered:
                self._undelivered[member] &= state.claims.keys()
            if all(map(state.is_done, finished.get(member, {}).values())):  # else another thread's change came between
                finished.pop(member, None)
            if state.speaks_for(self.consumer, self.session_id):
                self.attached.add(member)

    def _forget_unknown(self, changed: Mapping[int, RecordSet]) -> None:
        for member, state in changed.items():
            made = state.claims.keys() - self.known[member].state.claims.keys()
            self._undelivered.setdefault(member, set()).update(made)
            del self.known[member]
        if self.progress is not None:
            with suppress(StoreError):
                self.progress.close()

    # -- the session ----------------------------------------------------------------------------------------------
    @contextmanager
    def _unfenced(self) -> Iterator[None]:
        """Around each call of the session and its handles: a process that slept may find in any of them that it was fenced. That
        raises SessionEndedException. Another thread may have found out first, so every later call raises it too."""
        try:
            if self._fenced is not None:
                raise self._fenced
            yield
        except FencedError as error:
            self.known.clear()
            self._fenced = error
            raise SessionEndedException(
                f"the session of consumer {self.consumer} ended ({error}): its claims are or will be revoked. "
                "Close this consumer and create a new one."
            ) from error

    def has_session(self) -> bool:
        """False: the session has ended, and this consumer can only be closed."""
        return self._fenced is None and self.session_id in self.store.sessions()

    def check_session(self) -> None:
        """Raises SessionEndedException when the session has ended."""
        with self._unfenced():
            if not self.has_session():
                raise FencedError(f"session {self.session_id} is not alive any more")

    def close(self) -> None:
        self.known.clear()
        self.session.close()


class ProgressRecord:
    """The record of a query's progress: only its owner commits claims and acknowledgements. Closing the session
    frees it. Not thread-safe: the subscriber's lock guards it."""

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
    """Reads the backlog of a consumer's subscription. Not thread-safe: the subscriber's lock guards it."""

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
