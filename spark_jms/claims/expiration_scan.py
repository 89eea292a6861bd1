"""The active search for expired messages: those that no consumer comes to, because their consumers are busy or dead, or
refuse them, or because there are none.

The process with the housekeeping lease of a destination searches, so one at a time. It looks at the log and at the record
sets first, and a file only when a message of it may have expired since; the statistics of a file tell that most have none.
Then it takes a record as an administrator does: its holder hands it over at its next boundary, and claims stay in it. A
message that a consumer has, or a dead query whose batch is in doubt, does not expire.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow.compute as pc

from spark_jms.claims.error_destination import ErrorDestination
from spark_jms.claims.expiration import Expiration
from spark_jms.claims.expired_units import expired_units, next_end_ms
from spark_jms.claims.life_cycle_table import LifeCycleTable, opened_table
from spark_jms.claims.open_records import OpenRecords, opened_records
from spark_jms.claims.reconsideration import Reconsideration
from spark_jms.claims.record_sets import label_of, read_state
from spark_jms.claims.scan import Question, is_over, may_expire, scan
from spark_jms.claims.stores import record_of, sessions_beside
from spark_jms.claims.transfer import Transfers
from spark_jms.core.destination import QUEUE_SUBSCRIPTION, Subscription
from spark_jms.core.expiration import NEVER, DueLooks
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import missed, record_server
from spark_jms.errors import JmsqError, MemberUnavailableError
from spark_jms.log.data_file import DataFile
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.file_reader import read_stored
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms
from spark_jms.store import Store, StoreError

WAIT_S = 1.0  # for a record that a consumer holds; it is tried again with the next search
_MAX_S = 5.0  # of a search, at about the end of a step: then other housekeeping gets its turn


@dataclass(frozen=True, eq=False)
class _Place:
    """A record set: a subscription on a member."""

    subscription: Subscription
    member: int
    record: str
    label: str
    server: str


@dataclass
class _Looked:
    """What one look found: the messages that are over, by place, and the errors that prevented more of it."""

    over: dict[_Place, Ranges] = field(default_factory=dict)
    errors: list[Exception] = field(default_factory=list)

    def add(self, place: _Place, found: Ranges) -> None:
        if found:
            self.over[place] = self.over.get(place, EMPTY) | found


class _Step(NamedTuple):
    """`left` is for the next step; so many are `refused` for good."""

    expired: int = 0
    left: Ranges = EMPTY
    refused: int = 0


class _Holder(NamedTuple):
    """The parts that expire the messages of a subscription."""

    expiration: Expiration
    reconsidered: Reconsideration


class ExpirationScan:
    """Of one destination. Not thread-safe. `live` gives the subscriptions that are not durable."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        table: DeltaLog,
        live: Callable[[], Mapping[str, Subscription]],
        clock_ms: Callable[[], int] = now_ms,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._domain, self._store, self._table, self._live = domain, store, table, live
        self._clock_ms, self._monotonic_s = clock_ms, monotonic_s
        self._transfers = Transfers(domain, table, clock_ms)
        self._looks, self._unit_looks = DueLooks(), DueLooks()
        self._searched_s = float("-inf")
        self._names: set[str] = set()  # of the subscriptions that the looks concern
        self._holders: dict[str, _Holder] = {}  # by subscription

    def run(self, *, at_once: bool = False) -> int:
        """Search when the interval of the domain is over; returns how many messages have expired. After some seconds the rest
        is left to the next run, whose search begins at once. `at_once`: whatever the interval, and to the end. Raises the first
        error of the search, once everything else is searched."""
        snapshot = self._table.refresh()
        files = {file.path: file for file in _expiring(snapshot)}
        if not files or not self._is_due(at_once=at_once):
            return 0
        until_s = float("inf") if at_once else self._monotonic_s() + _MAX_S
        looked, count = self._look(snapshot, files), 0
        for place, over in looked.over.items():
            if self._monotonic_s() >= until_s:
                break
            try:
                count += self._expire(place, over, until_s)
            except MemberUnavailableError:  # its holder is busy
                continue
            except (JmsqError, StoreError, OSError) as error:
                looked.errors.append(error)
        if self._monotonic_s() >= until_s:
            self._searched_s = float("-inf")
        if looked.errors:
            raise looked.errors[0]
        return count

    # -- looking --------------------------------------------------------------------------------------------------
    def _is_due(self, *, at_once: bool) -> bool:
        interval_ms, now_s = self._domain.expiration_scan_interval_ms(), self._monotonic_s()
        if not interval_ms or not (at_once or (now_s - self._searched_s) * 1000 >= interval_ms):
            return False
        self._searched_s = now_s
        return True

    def _look(self, snapshot: Snapshot, files: Mapping[str, DataFile]) -> _Looked:
        looked, declared, now = _Looked(), snapshot.destination, self._clock_ms()
        subscriptions = self._subscriptions(snapshot)
        if names := {one.name for one in subscriptions} - self._names:
            self._looks.keep(())  # a new subscription may begin with messages that are over
        self._names = names | self._names
        self._looks.keep(files)
        due = [file for file in files.values() if self._looks.is_due(file.path, now)]
        places = _places(snapshot, subscriptions, sorted({file.member for file in due}))
        states: dict[_Place, RecordSet] = {}
        live: dict[str, set[str]] = {}  # server -> sessions
        for place in [place for of_member in places.values() for place in of_member]:
            if place.server not in declared.stopped:  # nothing asks its store
                with _kept(looked):
                    if place.server not in live:
                        live[place.server] = set(sessions_beside(self._store, place.record))
                    known = read_state(self._store, place.record, place.label)
                    states[place] = self._swept(snapshot, place, known, live[place.server])
        if declared.handles_units_of_work:
            self._look_at_units(snapshot, states, looked, now)
            return looked
        for file in due:
            with _kept(looked):
                self._look_at_file(snapshot, file, places.get(file.member, []), states, looked, now)
        found, looked.over = looked.over, {}
        for place, over in found.items():
            with _kept(looked):
                looked.add(place, self._wanted(snapshot, place, over, now))
        return looked

    def _subscriptions(self, snapshot: Snapshot) -> list[Subscription]:
        if not snapshot.destination.is_topic:
            return [Subscription(QUEUE_SUBSCRIPTION, {}, 0)]
        return [*snapshot.destination.subscriptions.values(), *self._live().values()]

    def _swept(self, snapshot: Snapshot, place: _Place, state: RecordSet, live: set[str]) -> RecordSet:
        """As a consumer that comes now finds it: without the claims of dead clients."""
        declared = snapshot.destination
        started = state.start_at(place.subscription.floor(place.member, snapshot.last_sequence(place.member)))
        swept = started.sweep(
            live, self._clock_ms(), declared.in_doubt_timeout_ms, declared.redelivery_delay_ms, due_ms=0
        )
        return self._holder(place).reconsidered.expirable(swept, declared)

    def _look_at_file(
        self,
        snapshot: Snapshot,
        file: DataFile,
        places: Iterable[_Place],
        states: Mapping[_Place, RecordSet],
        looked: _Looked,
        now: int,
    ) -> None:
        """A file that was deleted meanwhile has been replaced: the next search looks at the new one."""
        every = Ranges.of((file.first, file.last))
        over, next_ms = every if is_over(file, now) else EMPTY, NEVER
        with suppress(FileNotFoundError):
            for batch, sequences in (
                () if over else read_stored(self._table.storage, file.hint, every, ["JMSExpiration"])
            ):
                ends = batch.column("JMSExpiration")
                passed = pc.and_(pc.greater(ends, 0), pc.less_equal(ends, now))
                over = over | Ranges.from_numbers(sequences.filter(passed))
                next_ms = min(next_ms, next_end_ms(ends, now))
        left = False
        for place in places:
            state = states.get(place)
            left |= state is None or bool(state.unfinished_of(over))
            if state is not None:
                looked.add(place, over & _expirable(snapshot, state, file.first, file.last))
        if not left:
            self._looks.looked(file.path, next_ms)

    def _wanted(self, snapshot: Snapshot, place: _Place, over: Ranges, now: int) -> Ranges:
        """Without what the subscription's selector refuses, and what it has missed: that never belonged to it."""
        not_seen = missed(snapshot.destination, place.subscription.name, place.member, over.last) if over else EMPTY
        text = place.subscription.selector
        if not (text or not_seen):
            return over
        selector = Selector.parse(text) if text else None
        question = Question(selector, now_ms=now, skips_refused=True, missed=not_seen)
        return scan(self._table, place.member, over, question, table_id=snapshot.table_id).expired

    def _look_at_units(self, snapshot: Snapshot, states: Mapping[_Place, RecordSet], looked: _Looked, now: int) -> None:
        """Of a destination that handles units of work, of which one expires as a whole. A record set without new messages is
        looked at again when the next one of it expires."""
        keys = {f"{place.record} {snapshot.last_sequence(place.member)}": place for place in states}
        self._unit_looks.keep(keys)
        for key, place in keys.items():
            if not self._unit_looks.is_due(key, now):
                continue
            with _kept(looked):
                state, last = states[place], snapshot.last_sequence(place.member)
                unfinished, free = state.unfinished(1, last) - state.moving, _expirable(snapshot, state, 1, last)
                found = expired_units(self._table, snapshot, place.member, unfinished, free, now)
                looked.add(place, found.over)
                if not (found.over or found.waits):
                    self._unit_looks.looked(key, found.next_ms)

    # -- expiring -------------------------------------------------------------------------------------------------
    def _expire(self, place: _Place, over: Ranges, until_s: float) -> int:
        """In steps that hold the record shortly; its consumers continue between them."""
        count, left = 0, over
        while left and (not count or self._monotonic_s() < until_s):
            done = self._step(place, left)
            count, left = count + done.expired, done.left if done.expired or done.refused else EMPTY
        return count

    def _step(self, place: _Place, over: Ranges) -> _Step:
        holder = self._holder(place).expiration
        logged = self._table.snapshot.destination.message_logging_enabled
        labels = {place.record: place.label}
        self._table.refresh()  # what was sent while the last step was logged, before consumers wait for the record
        with opened_records(self._store, labels, WAIT_S, "expiration", logged=logged) as records:
            snapshot = self._table.refresh()
            if record_of(snapshot, place.subscription.name, place.member) != place.record:
                return _Step()  # the destination was dropped and created again
            holder.forget()
            done = self._expire_held(holder, snapshot, place, over, records)
            self._write_events(snapshot, place, records)
        holder.log_written()
        return done

    def _expire_held(
        self, holder: Expiration, snapshot: Snapshot, place: _Place, over: Ranges, records: OpenRecords
    ) -> _Step:
        epoch, declared = records.handles[place.record].epoch, snapshot.destination
        name = place.subscription.name
        known = name in declared.subscription_names() or (declared.is_topic and name in self._live())
        if not known:
            return _Step()
        live = set(sessions_beside(self._store, place.record))
        state = self._swept(snapshot, place, records.states[place.record], live)
        free = over & _expirable(snapshot, state, 1, snapshot.last_sequence(place.member))
        if not free or (declared.handles_units_of_work and state.unfinished_of(over) - free):
            return _Step()  # a consumer has a part of a unit since
        after = holder.expire(state, snapshot, place.member, free, epoch)
        if after is state:
            return _Step()  # the error destination cannot take them now
        records.change({place.record: after})
        if after.intents:
            after = self._transfers.finish(after, epoch, patient=True).state
            records.change({place.record: after})
        return _Step(
            after.expired - state.expired,
            after.unfinished_of(free) - after.moving - after.refused,
            (after.refused & free).count,
        )

    def _write_events(self, snapshot: Snapshot, place: _Place, records: OpenRecords) -> None:
        """Into the life-cycle table, because there may be no consumer that does it."""
        state = records.states[place.record]
        if not (state.life.waiting and snapshot.destination.message_logging_enabled):
            return
        table = LifeCycleTable(opened_table(self._domain, self._table.name), snapshot.table_id)
        written = table.write(place.subscription.name, {place.member: state.life.waiting})
        records.change({place.record: state.logged_to_table(written[place.member])})

    def _holder(self, place: _Place) -> _Holder:
        name = place.subscription.name
        if name not in self._holders:
            label = partial(label_of, self._table.name, name)
            errors = ErrorDestination(self._table, self._transfers, label, self._clock_ms, fail_on_data_loss=True)
            self._holders[name] = _Holder(
                Expiration(self._table, errors, "expiration", label, self._clock_ms, beside=False),
                Reconsideration(self._transfers, errors, "expiration", label, self._clock_ms),
            )
        return self._holders[name]


def _expiring(snapshot: Snapshot) -> Iterator[DataFile]:
    """The files with messages that may expire."""
    declared = snapshot.destination
    incomplete = declared.handles_units_of_work and declared.incomplete_work_expiration_ms is not None
    for member in sorted(snapshot.numbered_members()):
        yield from (file for file in snapshot.member_files(member).files if incomplete or may_expire(file))


def _places(
    snapshot: Snapshot, subscriptions: Sequence[Subscription], members: Iterable[int]
) -> dict[int, list[_Place]]:
    """By member."""
    declared = snapshot.destination
    return {
        member: [
            _Place(
                one,
                member,
                record_of(snapshot, one.name, member),
                label_of(declared.name, one.name, member),
                record_server(declared, one.name, member),
            )
            for one in subscriptions
        ]
        for member in members
    }


def _expirable(snapshot: Snapshot, state: RecordSet, first: int, last: int) -> Ranges:
    """What was delivered too often belongs in the error destination, and waits for a consumer that brings it there."""
    return state.available(first, last) - state.kept_back(snapshot.destination.redelivery_limit)


@contextmanager
def _kept(looked: _Looked) -> Iterator[None]:
    """An error of one file or record set prevents nothing else."""
    try:
        yield
    except (JmsqError, StoreError, OSError) as error:
        looked.errors.append(error)
