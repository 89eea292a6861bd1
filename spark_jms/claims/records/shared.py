"""Record sets that any live consumer may change: what one has planned is done inside the store's write, on the newest state.

A consumer follows the record sets of its members: it looks, and reads only what has changed since. It plans on that state and
commits the journal of its plan (core/records/journal.py), which the rule `record-sets` replays, in this process or in the engine
that serves the store. So no consumer waits for another one, and none writes over what another one has written:

    the rule answers   the consumer
    ----------------   ------------
    nothing            looks what it has got: its claim has the messages that were still to be had
    again              PlanOutdatedError: messages that the plan was about are not as they were, so it plans again
    refused            raises the error: its claim is not its own any more, or the record set cannot be read

An administrator, and a consumer of an earlier release, opens a record set for itself. A consumer that meets that waits in line once
and goes on.

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace

from spark_jms import errors
from spark_jms.claims.records.members import Held, Members
from spark_jms.claims.servers.stores import operations
from spark_jms.core.records.batch import QueryProgress, preferred
from spark_jms.core.records.journal import PlannedChange, StateChangedError, found_dead, replayed
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.core.records.stored_form import NEW_RECORD, Followed, followed
from spark_jms.errors import JmsqError, MemberUnavailableError
from spark_jms.store import (
    Handle,
    Operation,
    OutcomeUnknownError,
    RecordHeldError,
    RecordView,
    RuleCall,
    RuleResult,
)

SHARES = False  # of all consumers of a process: tests switch it on
RULE = "record-sets"
SHORT_S = 0.2  # an administrator has a record set open for less
LINE_S = 0.5  # how long a plan waits in line for it
CHANGE_S = 15.0  # how long a change waits for it
_PAUSE_S = 0.01
_MOST_FOLLOWED = 1_000
_AGAIN, _REFUSED = "again", "refused"
_followed: dict[str, Followed] = {}  # of this process, by record


class PlanOutdatedError(MemberUnavailableError):
    """Others have changed messages that a plan was about: nothing was written, and a new plan may do it."""


# -- in the store's write ----------------------------------------------------------------------------------------------
def change_record_sets(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """The rule. A session that the plan found dead ends in the same write, so that it cannot act any more."""
    change = PlannedChange.from_bytes(argument)
    dead = sessions.intersection(change.dead)
    decided: dict[str, list[Operation]] = {}
    try:
        for name, journal in change.journals.items():
            before = follow(name, records[name].objects)
            decided[name] = operations(before, replayed(before, journal, sessions, dead))
    except StateChangedError as error:
        return RuleResult({}, answer=json.dumps([_AGAIN, name, str(error)]).encode())
    except JmsqError as error:
        return RuleResult({}, answer=json.dumps([_REFUSED, type(error).__name__, str(error)]).encode())
    return RuleResult(decided, dead)


def follow(record: str, objects: Mapping[str, bytes], label: str = "") -> RecordSet:
    """Raises RecordSetError or FormatVersionError."""
    known = _followed.get(record, NEW_RECORD)
    found = followed(known, objects, label or record)
    if found is not known:
        if len(_followed) >= _MOST_FOLLOWED:
            _followed.clear()
        _followed[record] = found
    return found.state


def raise_refusal(answer: bytes, label: str) -> None:
    """What an answer of the rule says, if anything. `label`: of the record sets."""
    if not answer:
        return
    kind, what, text = json.loads(answer)
    if kind == _AGAIN:
        raise PlanOutdatedError(f"others have changed {label} meanwhile ({text}): nothing was changed; try again")
    raise getattr(errors, what)(text)


# -- of a consumer -----------------------------------------------------------------------------------------------------
class SharedMembers(Members):
    """The record sets that one consumer follows. `held` has them, but for those that another session has opened."""

    shares = True

    def _begin(self) -> None:
        self._met: dict[int, tuple[int, float]] = {}  # opened by another session: with which version, and since when
        self._done: dict[int, tuple[Noted, ...]] = {}  # of each member: the journal that was committed last

    # -- following ------------------------------------------------------------------------------------------------
    def acquire(
        self, candidates: Collection[int], last_sequences: Mapping[int, int], *, visits_all: bool, needed: Set[int]
    ) -> None:
        self._look(candidates)

    def refresh(self) -> None:
        self._look(list(self.held))

    def open(self, member: int) -> bool:
        if member not in self.held:
            self._look([member])
        return member in self.held

    def state(self, member: int) -> RecordSet:
        with self._unfenced():
            view = self.session.look([self.record(member)])[self.record(member)]
        return follow(self.record(member), view.objects, self.label(member))

    def _look(self, members: Collection[int]) -> None:
        if not members:
            return
        records = {member: self.record(member) for member in members}
        with self._unfenced():
            views = self.session.look(list(records.values()))
        for member, record in records.items():
            view = views[record] if views[record].holder is None else self._passed(member, views[record].version)
            if view is not None and view.holder is None:
                self._known(member, view)

    def _known(self, member: int, view: RecordView) -> None:
        state = replace(follow(self.record(member), view.objects, self.label(member)), journal=())
        if self._is_logged():
            state = state.logging(is_on=True, now_ms=self._clock_ms())
        self.check_speaks(state, member)
        self.held[member] = Held(None, state, self.monotonic_s(), view.version)

    def _passed(self, member: int, version: int) -> RecordView | None:
        """The record set that another session has opened, once that has closed it; None: not yet. One that keeps it for long is a
        consumer of an earlier release, which hands it over to who waits in line."""
        record, now = self.record(member), self.monotonic_s()
        self.held.pop(member, None)
        met, since = self._met.get(member, (0, 0.0))
        if met != version:
            self._met[member] = version, now
        if met != version or now - since < SHORT_S:
            return None
        with self._unfenced():
            passed = self._wait_in_line(record, LINE_S)
            del self._met[member]  # not again at once
            return self.session.look([record])[record] if passed else None

    def _wait_in_line(self, record: str, limit_s: float) -> bool:
        """Whether it was this session's turn; then the record set is open to all again."""
        try:
            self.session.open(record, timeout_ms=int(limit_s * 1000)).close()
        except RecordHeldError:
            self.session.cancel(record)
            return False
        return True

    # -- changing -------------------------------------------------------------------------------------------------
    def commit(self, changed: Mapping[int, RecordSet], progress: QueryProgress | None = None) -> None:
        """What led to these states is done to the newest ones, and the query's progress written, in one atomic change. Raises
        ConsumerClosedException, PlanOutdatedError, and MemberUnavailableError while another session has a record set open."""
        journals = {member: new for member, state in changed.items() if (new := self._new(member, state))}
        own, held = self.progress, dict[Handle, list[Operation]]()
        if not journals and (own is None or progress in (None, own.value)):
            return
        if own is not None:
            progress = progress or self.open_progress()
            held = own.operations(progress)
        states = {member: self.held[member].state for member in journals if member in self.held}
        dead = set[str]().union(*(found_dead(state, journals[member]) for member, state in states.items()))
        change = PlannedChange({self.record(member): new for member, new in journals.items()}, dead - {self.session_id})
        try:
            answer = self._asked(list(change.journals), RuleCall(RULE, change.to_bytes()), held)
        except OutcomeUnknownError:
            self._forget_unknown({member: changed[member] for member in states})
            raise
        raise_refusal(answer, ", ".join(self.label(member) for member in journals))
        for member in journals:
            self._done[member] = changed[member].journal or ()
        with self._unfenced():
            views = self.session.look(list(change.journals))
        for member in journals:
            self._known(member, views[self.record(member)])  # also if an administrator has opened it meanwhile
        self._note_written(journals, progress)

    def _new(self, member: int, state: RecordSet) -> tuple[Noted, ...]:
        """What led to this state since the last commit; () when that is nothing of its own."""
        journal, done = state.journal or (), self._done.get(member, ())
        if done and len(journal) >= len(done) and journal[len(done) - 1] is done[-1]:
            journal = journal[len(done) :]
        return journal if any(noted.method != "logging" for noted in journal) else ()

    def _asked(self, records: Sequence[str], call: RuleCall, held: Mapping[Handle, Sequence[Operation]]) -> bytes:
        began_s = since_s = self.monotonic_s()
        holder: str | None = None
        while True:
            try:
                with self._unfenced():
                    return self.session.change(records, call, held)
            except RecordHeldError as error:
                now = self.monotonic_s()
                if error.holder != holder:
                    holder, since_s = error.holder, now
                if now - since_s < SHORT_S:
                    time.sleep(_PAUSE_S)
                elif now - began_s >= CHANGE_S or not self._wait_in_line(error.name, CHANGE_S - (now - began_s)):
                    raise MemberUnavailableError(
                        f"another session has opened {error.name} for {CHANGE_S:g} s: nothing was changed; see who it is with "
                        "`jmsq claims`, and try again"
                    ) from error

    # -- sharing --------------------------------------------------------------------------------------------------
    def keeps(self, member: int) -> bool:
        """Of the consumers of this member that live, this one does what one of them should do: writing rows to their tables."""
        living = self.store.sessions().keys() & set(self.held[member].state.consumers.values())
        return not living or min(living) == self.session_id

    def take_up(self, member: int) -> None:
        if self.open(member):
            self.commit({member: self.attached_state(member)})

    def first_members(self, members: Set[int], live_sessions: Set[str]) -> set[int]:
        beside = {
            consumer
            for member in members
            for consumer, session in self.held[member].state.consumers.items()
            if session in live_sessions
        }
        return preferred(self.consumer, beside, members)

    def borrowed(self) -> set[int]:
        return set()

    def contested(self) -> set[int]:
        return set()

    def granted(self) -> bool:
        return False

    def hand_over(self, last_sequences: Mapping[int, int]) -> int:
        return 0

    def leave(self, member: int, last_sequence: int, *, looked_at: bool = False) -> None:
        """Others may take its messages as it is."""

    def has_looked_at(self, member: int) -> bool:
        return member in self.held

    def forget(self, member: int) -> None:
        self.held.pop(member, None)

    def leave_all(self) -> None:
        self.held.clear()


def members_kind() -> type[Members]:
    """How the consumers of this process have their records."""
    return SharedMembers if SHARES else Members
