"""Expired messages leave their member by the policy of the destination: core/records/expiration.py has the rules.

A consumer calls Expiration for what its plan has found, the search of a process for the rest. The log
tells of a message once its end is written, so never twice; a process that dies in between has not logged it.

ExpirationScan is that search, for messages that no consumer comes to, because their consumers are busy or dead, or refuse them, or
because there are none. The process with the housekeeping lease of a destination searches, so one at a time. It looks at the log
and at the record sets first, and a file only when a message of it may have expired since; the statistics of a file tell that most
have none. Then it opens a record set as an administrator does, and claims stay in it. A
message that a consumer has, or a dead query whose batch is in doubt, does not expire.

Features: T6, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.failures.error_destination import ErrorDestination, Reconsideration, UnclaimedMessages
from spark_jms.claims.messages.fetch import fetch
from spark_jms.claims.messages.scan import Question, is_over, may_expire, read_files, scan
from spark_jms.claims.records.life_cycle import AcknowledgementTable, LifeCycleTable, flush_opened, opened_table
from spark_jms.claims.servers.stores import (
    OpenRecords,
    label_of,
    opened_records,
    read_state,
    record_of,
    sessions_beside,
    started,
)
from spark_jms.claims.transactions.transfer import Transfers
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION, Destination, Subscription
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.destinations.subscriptions import missed, record_server
from spark_jms.core.messages.arrays import empty_table
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.messages.types import readable_rows
from spark_jms.core.ordering.units_of_work import NO_PARTS, PART_COLUMNS, judge, parts
from spark_jms.core.records.endings import EXPIRED_CLAIMS, EXPIRER, Stamp
from spark_jms.core.records.expiration import NEVER, REASON, DueLooks, columns_of, entry
from spark_jms.core.records.record_set import RecordSet
from spark_jms.errors import JmsqError, MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile, FileHint
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.health import rest
from spark_jms.settings.destination import UNLIMITED
from spark_jms.settings.fields import DISCARD, LOG, REDIRECT, LoggedFields
from spark_jms.store import Store, StoreError

log = logging.getLogger("spark_jms")
expiration_log = logging.getLogger("spark_jms.expiration")
# Messages of one step of a search. While it lasts no consumer has the record, and logging 50,000 takes seconds: consumers that
# gave the record away more often would deliver more than one message in a hundred late.
LOGGED, REDIRECTED = 50_000, 2_000
IDLE = 500  # of a plan of a consumer that delivers nothing
DELIVERING, DELIVERING_EVERY_MS = 100, 1_000  # of one that does, and how often; the search takes the others
_STEP_ROWS = 25  # of the log: about a millisecond of Python
SCATTERED = 20_000  # ranges of one step: their row waits in the outbox, and a full outbox stops consumers
WAIT_S = 1.0  # for a record set that another session has opened; it is tried again with the next search
_MAX_S = 5.0  # of a search, at about the end of a step: then other housekeeping gets its turn
_SINGLES = empty_table(pa.schema([("sequence", pa.int64()), ("expires_ms", pa.int64())]))

# -- in a plan ---------------------------------------------------------------------------------------------------------


class Expiration:
    """Ends expired messages by the policy of their destination. Of one consumer, or of the search. Not thread-safe."""

    def __init__(
        self,
        table: DeltaLog,
        errors: ErrorDestination,
        session: str,
        label: Callable[[int], str],
        clock_ms: Callable[[], int],
        *,
        beside: bool,
    ) -> None:
        """`beside`: of a consumer."""
        self._table, self._beside = table, beside
        self._unclaimed = UnclaimedMessages(errors, EXPIRER, session, label, clock_ms)
        self._unlogged: list[_Unlogged] = []
        self._clock_ms = clock_ms
        self._delivered_ms = 0  # when a plan had others to deliver last
        self._taken_ms = 0  # when some were taken beside them

    def expire(
        self, state: RecordSet, snapshot: Snapshot, member: int, over: Ranges, epoch: int, *, delivers: bool = False
    ) -> RecordSet:
        """The state of a held member without these messages, as far as possible: so many in one step if they are logged or
        redirected, but units of work as a whole. A consumer that `delivers` others takes a step a second, until it had none to
        deliver for so long: its plan between two messages is empty too. When it has a new intent, the caller writes the state and
        then finishes the transfer. Raises DataLossError for messages that are gone."""
        declared = snapshot.destination
        over = state.unfinished_of(over - state.claimed - state.moving - state.refused)
        if delivers:
            self._delivered_ms = self._clock_ms()
        if over and (most := self._most(declared)) is not None:
            over = over.take(most)
        elif not (declared.handles_units_of_work or declared.messages_limit_override != UNLIMITED):
            over = over.take_ranges(SCATTERED)
        if not over:
            return state
        if declared.expiration_policy == REDIRECT:
            if not self._unclaimed.may_move(member):
                return state
            kept_back = "have expired; they are kept back, because they"
            return self._unclaimed.move(state, declared, member, over, epoch, REASON, kept_back)
        if declared.expiration_policy == LOG and expiration_log.isEnabledFor(logging.WARNING):
            self._unlogged.append(_unlogged(state, snapshot, member, over))
        return state.expire(over, EXPIRED_CLAIMS[declared.expiration_policy], Stamp(epoch, self._clock_ms()))

    def _most(self, declared: Destination) -> int | None:
        """Of one step; None: all. Reading and logging takes as long as a delivery, but others may depend on the whole: a unit of
        work, or a limit that counts what is not finished."""
        if declared.expiration_policy == DISCARD or declared.handles_units_of_work:
            return None
        if not self._beside:
            return LOGGED if declared.expiration_policy == LOG else REDIRECTED
        now = self._clock_ms()
        if not self._is_recent(self._delivered_ms, now) or declared.messages_limit_override != UNLIMITED:
            return IDLE
        if self._is_recent(self._taken_ms, now):
            return 0
        self._taken_ms = now
        return DELIVERING

    @staticmethod
    def _is_recent(then_ms: int, now_ms: int) -> bool:
        return 0 <= now_ms - then_ms < DELIVERING_EVERY_MS

    def forget(self) -> None:
        """What was expired last is not written."""
        self._unlogged = []

    def log_written(self) -> None:
        """What was expired is written: log it."""
        unlogged, self._unlogged = self._unlogged, []
        for each in unlogged:
            try:
                _log(self._table, each, beside=self._beside)
            except (JmsqError, OSError) as error:  # they have expired, so this fails nothing else
                log.warning(
                    "%s, member %d: %d message(s) have expired (%s), and could not be read for the log: %s",
                    each.destination,
                    each.member,
                    each.picks.count,
                    each.picks,
                    error,
                )


@dataclass(frozen=True)
class _Unlogged:
    """Expired messages, as they were before their end was written."""

    destination: str
    table_id: str
    member: int
    picks: Ranges
    redelivered: dict[int, Ranges]
    files: Sequence[FileHint]  # a purge may take them out of the log
    fields: LoggedFields


def _unlogged(state: RecordSet, snapshot: Snapshot, member: int, picks: Ranges) -> _Unlogged:
    declared = snapshot.destination
    files = snapshot.member_files(member).overlapping(picks.first, picks.last)
    return _Unlogged(
        declared.name,
        snapshot.table_id,
        member,
        picks,
        state.redelivered(picks),
        [file.hint for file in files if picks.between(file.first, file.last)],
        LoggedFields.parse(declared.expiration_logging_policy),
    )


def _log(table: DeltaLog, each: _Unlogged, *, beside: bool) -> None:
    """A search lets others run meanwhile: the threads of its process, and consumers of this machine."""
    begun_s = time.monotonic()
    rows = fetch(
        table,
        each.destination,
        each.member,
        each.picks,
        each.redelivered,
        columns=columns_of(each.fields),
        files=each.files,
        fail_on_data_loss=False,
        table_id=each.table_id,
    )
    for batch in rows:
        for at in range(0, batch.num_rows, _STEP_ROWS):
            _log_rows(batch.slice(at, _STEP_ROWS), each.fields)
            if not beside:
                begun_s = rest(begun_s)


def _log_rows(rows: pa.RecordBatch, fields: LoggedFields) -> None:
    for row in readable_rows(rows).to_pylist():
        expiration_log.warning("%s", entry(row, dict(row.get("properties") or ()), fields))


# -- the search --------------------------------------------------------------------------------------------------------


class ExpirationScan:
    """Searches for expired messages. Of one destination. Not thread-safe. `live` gives the subscriptions that are not durable."""

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
        self._searched_s: dict[str, float] = {}  # server -> when a search of its record sets began
        self._names: set[str] = set()  # of the subscriptions that the looks concern
        self._holders: dict[str, _Holder] = {}  # by subscription

    def run(self, *, at_once: bool = False, due: Mapping[int, Ranges] | None = None) -> int:
        """Search the record sets of each server whose interval is over; returns how many messages have expired. After some seconds
        the rest is left to the next run, whose search begins at once. `at_once`: whatever the interval, and to the end. `due`: at
        once, only in the files of these messages, by member. Raises the first error of the search, once everything else is
        searched."""
        snapshot = self._table.refresh()
        files = {file.path: file for file in _expiring(snapshot) if due is None or _has_due(file, due)}
        servers = self._due_servers(snapshot, at_once=at_once or due is not None) if files else set()
        if not servers:
            return 0
        until_s = float("inf") if at_once else self._monotonic_s() + _MAX_S
        looked, count = self._look(snapshot, files, servers), 0
        for place, over in looked.over.items():
            if self._monotonic_s() >= until_s:
                break
            try:
                count += self._expire(place, over, until_s)
            except MemberUnavailableError:  # an administrator has it open
                continue
            except (JmsqError, StoreError, OSError) as error:
                looked.errors.append(error)
        if self._monotonic_s() >= until_s:
            for server in servers:
                del self._searched_s[server]
        if looked.errors:
            raise looked.errors[0]
        return count

    # -- looking --------------------------------------------------------------------------------------------------
    def _due_servers(self, snapshot: Snapshot, *, at_once: bool) -> set[str]:
        servers = {HOME, *snapshot.destination.servers_in_use()}  # HOME has those of removed members
        intervals_ms = self._domain.expiration_scan_intervals_ms(servers)
        now_s, never_s = self._monotonic_s(), float("-inf")
        due = {
            server
            for server, ms in intervals_ms.items()
            if ms and (at_once or (now_s - self._searched_s.get(server, never_s)) * 1000 >= ms)
        }
        self._searched_s.update(dict.fromkeys(due, now_s))
        return due

    def _look(self, snapshot: Snapshot, files: Mapping[str, DataFile], servers: set[str]) -> _Looked:
        """A file of which another server has record sets too is looked at again."""
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
            if place.server in servers - declared.stopped.keys():  # nothing asks the store of a stopped one
                with _kept(looked):
                    if place.server not in live:
                        live[place.server] = set(sessions_beside(self._store, place.record))
                    known = read_state(self._store, place.record, place.label)
                    states[place] = self._swept(snapshot, place, known, live[place.server])
        if declared.handles_units_of_work:
            self._look_at_units(snapshot, states, looked, now)
            return looked
        for file in due:
            of_member = places.get(file.member, [])
            if not of_member or any(place.server in servers for place in of_member):
                with _kept(looked):
                    self._look_at_file(snapshot, file, of_member, states, looked, now)
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
        floor = place.subscription.floor(place.member, snapshot.last_sequence(place.member))
        swept = started(state, snapshot, place.member, floor).sweep(
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
        from spark_jms.core.selector import Selector

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
        self._table.refresh()  # what was sent while the last step was logged, before the record is open
        with opened_records(self._store, labels, WAIT_S, "expiration", logged=logged) as records:
            snapshot = self._table.refresh()
            if record_of(snapshot, place.subscription.name, place.member) != place.record:
                return _Step()  # the destination was dropped and created again
            holder.forget()
            done = self._expire_held(holder, snapshot, place, over, records)
            self._write_rows(snapshot, place, records)
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

    def _write_rows(self, snapshot: Snapshot, place: _Place, records: OpenRecords) -> None:
        """Into the acknowledgement table and the life-cycle table, because there may be no consumer that does it."""
        rows = self._domain.acknowledgements(self._table.name)
        table = AcknowledgementTable(rows, snapshot.table_id, place.subscription.name)
        flush_opened(table, records, {place.record: place.member})
        state = records.states[place.record]
        if not (state.life.waiting and snapshot.destination.message_logging_enabled):
            return
        events = LifeCycleTable(opened_table(self._domain, self._table.name), snapshot.table_id)
        written = events.write(place.subscription.name, {place.member: state.life.waiting})
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


def _expiring(snapshot: Snapshot) -> Iterator[DataFile]:
    """The files with messages that may expire."""
    declared = snapshot.destination
    incomplete = declared.handles_units_of_work and declared.incomplete_work_expiration_ms is not None
    for member in sorted(snapshot.numbered_members()):
        yield from (file for file in snapshot.member_files(member).files if incomplete or may_expire(file))


def _has_due(file: DataFile, due: Mapping[int, Ranges]) -> bool:
    return bool(due.get(file.member, EMPTY).between(file.first, file.last))


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


# -- units of work -----------------------------------------------------------------------------------------------------


class ExpiredUnits(NamedTuple):
    """`over` expire now; `waits`: a consumer has a part of a unit that is over; `next_ms`: when the next one is over."""

    over: Ranges
    waits: bool
    next_ms: int


def expired_units(
    table: DeltaLog, snapshot: Snapshot, member: int, unfinished: Ranges, free: Ranges, now_ms: int
) -> ExpiredUnits:
    """What is over of a destination that handles units of work: of the unfinished messages of a member, of which `free` may expire,
    whole units, and messages of none."""
    rest = [_SINGLES]

    def read(file: DataFile, part: Ranges) -> Iterator[pa.Table]:
        for rows, sequences in read_stored(table.storage, file.hint, part, list(PART_COLUMNS)):
            found = parts(rows, sequences, pa.repeat(True, rows.num_rows))
            alone = pc.invert(pc.is_in(sequences, found["sequence"].combine_chunks()))
            rest.append(pa.table([sequences, rows.column("JMSExpiration")], schema=_SINGLES.schema).filter(alone))
            yield found

    found, _ = read_files(table, member, unfinished, read, table_id=snapshot.table_id)
    in_units, singles = pa.concat_tables([NO_PARTS, *found]).sort_by("sequence"), pa.concat_tables(rest)
    after_ms = snapshot.destination.incomplete_work_expiration_ms
    numbers = Ranges.from_numbers(in_units["sequence"].combine_chunks())
    ended = pc.and_(pc.greater(singles["expires_ms"], 0), pc.less_equal(singles["expires_ms"], now_ms))
    alone = Ranges.from_numbers(singles["sequence"].filter(ended).combine_chunks())
    ever = judge(in_units, numbers, now_ms, after_ms).expired
    over = judge(in_units, numbers & free, now_ms, after_ms).expired if ever else EMPTY
    times = [in_units["expires_ms"], singles["expires_ms"]]
    times += [pc.add(in_units["sent_ms"], after_ms)] * (after_ms is not None)
    next_ms = min(next_end_ms(column, now_ms) for column in times)
    return ExpiredUnits(over | (alone & free), bool(ever - over or alone - free), next_ms)


def next_end_ms(ends: pa.Int64Array | pa.ChunkedArray, now_ms: int) -> int:
    """The first of these times that is to come."""
    return pc.min(ends.filter(pc.greater(ends, now_ms))).as_py() or NEVER
