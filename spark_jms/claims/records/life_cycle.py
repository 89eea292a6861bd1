"""The tables that follow the record sets of a destination: of its acknowledgements, and of its life-cycle events.

The store is the truth, and the tables follow it. An acknowledgement or an event waits in its record set until it is a row of its
table. No writer is on the way of a send or a receive:

    acknowledgements, events of record sets   a consumer's background thread, about once a second
    acknowledgements that no session holds    housekeeping, in each round
    sent messages                             housekeeping, in each round

A transaction of a table keeps the position up to which it has a record set's acknowledgements or events, or a member's sent
messages. So a write that is repeated, by whatever process and after whatever crash, adds nothing, and each row of the life-cycle
table has a `key` of its own.

No send writes to the life-cycle table. A message is sent when the log of the destination's own table has it, so `sent_events`
reads the numbers of that table: whatever process writes them here, and whenever, no message is missed and none is named twice.

Features: C5, C14, T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import pyarrow as pa

from spark_jms.claims.servers.stores import OpenRecords, addressed, opened_state, operations, read_state, store_of
from spark_jms.core.messages.arrays import arrow_array
from spark_jms.core.messages.ranges import Ranges, union
from spark_jms.core.records.endings import HullClaim, counts_apart
from spark_jms.core.records.life_cycle import Acknowledgement, LoggedEvent, events_id, sent_id
from spark_jms.core.records.stored_form import MEMBERS_PREFIX
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.data_files import FileWriter, discard, read_stored
from spark_jms.log.sending.send import number
from spark_jms.log.tables.commit import ACKNOWLEDGEMENT_SCHEMA, LIFE_CYCLE_SCHEMA, Decision, commit_prepared
from spark_jms.log.tables.delta_log import Action, DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import Storage, now_ms
from spark_jms.settings.fields import LifeEvent
from spark_jms.store import Handle, RecordHeldError, Session, Store, StoreError

log = logging.getLogger("spark_jms")
_Events = tuple[int, Sequence[LoggedEvent]]  # member, in the order of their positions
_Missing = Callable[[Snapshot], Mapping[str, _Events]]  # by the txn app id of their position

# -- acknowledgements --------------------------------------------------------------------------------------------------


@dataclass
class StagedRows:
    """The rows of one attempt: their files, and the new position of each source of rows."""

    files: list[StagedFile] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)  # txn app id -> position


class _CountedApart(NamedTuple):
    """A row of the table that counts apart. `at`: its position."""

    consumer: str
    reason: str
    at: int
    messages: int


class _Known(NamedTuple):
    """What the table has of a record set."""

    picks: Ranges
    apart: list[_CountedApart]


class AcknowledgementTable:
    """The rows of one subscription in the acknowledgement table of its destination, whose messages are in the table
    `table_id`."""

    def __init__(self, table: DeltaLog, table_id: str, subscription: str) -> None:
        self.table, self.table_id, self.subscription = table, table_id, subscription

    def write(self, outboxes: Mapping[int, Sequence[Acknowledgement]]) -> dict[int, int]:
        """Write the outboxes of these members in one commit. Returns up to which position the table has each."""
        staged = StagedRows()
        written: dict[int, int] = {}

        def prepare(snapshot: Snapshot) -> StagedRows:
            nonlocal staged
            discard(self.table.storage, staged.files)
            staged = StagedRows()
            for member, waiting in outboxes.items():
                app_id = position_id(self.table_id, self.subscription, member)
                position = snapshot.transactions.get(app_id, 0)
                new = [row for row in waiting if row.position > position]
                written[member] = max([position, *(row.position for row in waiting)])
                if new:
                    if rows := self._unwritten(snapshot, member, new, position):
                        staged.files.append(self._stage(member, rows))
                    staged.positions[app_id] = new[-1].position
            return staged

        now = now_ms()
        commit_prepared(self.table, prepare, lambda snapshot, ready: decide_rows(snapshot, ready, now))
        return written

    def _unwritten(
        self, snapshot: Snapshot, member: int, rows: Sequence[Acknowledgement], position: int
    ) -> list[Acknowledgement]:
        """A row folded of acknowledgements in the table and of later ones keeps only the latter. A message is acknowledged
        once, so the rows in the table tell which; of rows that count apart (core/records/endings.py) those of its positions. Rare: an
        earlier write was not noted in the store, and then the table could not be written for a long time."""
        out = list(rows)
        for i, row in enumerate(rows):
            if row.since and row.since <= position:
                known = self._in_table(snapshot, member)
                if counts_apart(row.consumer):
                    written = (one for one in known.apart if one.consumer == row.consumer and one.at >= row.since)
                    out[i] = row.without(sum(one.messages for one in written if one.reason == row.reason))
                else:
                    out[i] = replace(row, picks=row.picks - known.picks)
        return [row for row in out if row.messages]

    def _in_table(self, snapshot: Snapshot, member: int) -> _Known:
        found, apart = list[Ranges](), list[_CountedApart]()
        columns = ["subscription", "consumer", "claim", "messages", "ranges"]
        for file in snapshot.member_files(member).files:
            everything = Ranges.of((file.first, file.last))
            for batch, _ in read_stored(self.table.storage, file.hint, everything, columns):
                for row in batch.to_pylist():
                    if row["subscription"] != self.subscription:
                        continue
                    if counts_apart(row["consumer"]):
                        claim = HullClaim.parse(row["claim"])
                        apart.append(_CountedApart(row["consumer"], claim.reason, claim.position, row["messages"]))
                    else:
                        found.append(Ranges.from_json(json.loads(row["ranges"])))
        return _Known(union(found), apart)

    def _stage(self, member: int, rows: Sequence[Acknowledgement]) -> StagedFile:
        writer = FileWriter(self.table.storage, member, ACKNOWLEDGEMENT_SCHEMA)
        columns = {
            "ordinal": range(len(rows)),
            "subscription": [self.subscription] * len(rows),
            "consumer": [row.consumer for row in rows],
            "claim": [row.claim for row in rows],
            "epoch": [row.epoch for row in rows],
            "acknowledged_ms": [row.acknowledged_ms for row in rows],
            "messages": [row.messages for row in rows],
            "first": [row.picks.first for row in rows],
            "last": [row.picks.last for row in rows],
            "ranges": [json.dumps(row.picks.to_json()) for row in rows],
        }
        arrays = [arrow_array(columns[f.name], f.type) for f in ACKNOWLEDGEMENT_SCHEMA]
        writer.append(pa.RecordBatch.from_arrays(arrays, schema=ACKNOWLEDGEMENT_SCHEMA))
        return writer.close()


def flush_opened(table: AcknowledgementTable, records: OpenRecords, members: Mapping[str, int]) -> None:
    """Write the outboxes of open records of the table's subscription. `members` has the member of each."""
    waiting = {member: records.states[name].outbox for name, member in members.items() if records.states[name].outbox}
    if waiting:
        written = table.write(waiting)
        done = {name: records.states[name] for name, member in members.items() if member in written}
        records.change({name: state.delivered_to_table(written[members[name]]) for name, state in done.items()})


class FreeOutboxes:
    """Writes the outboxes of record sets without a live consumer, which would do it: theirs were killed, or a part of spark-jms has
    ended messages there. Of one destination; housekeeping calls it."""

    def __init__(self, acknowledgements: DeltaLog) -> None:
        self._acknowledgements = acknowledgements

    def flush(self, session: Session, table_id: str, subscription: str, records: Mapping[int, str]) -> int:
        """`records`: member -> the record that seems to have rows. Returns how many rows were written."""
        with ExitStack() as opened:
            handles: dict[int, Handle] = {}
            for member, record in records.items():
                try:
                    handles[member] = opened.enter_context(session.open(record))
                except RecordHeldError:
                    session.cancel(record)
            states = {member: opened_state(handle) for member, handle in handles.items()}
            waiting = {member: state.outbox for member, state in states.items() if state.outbox}
            if not waiting:
                return 0
            written = AcknowledgementTable(self._acknowledgements, table_id, subscription).write(waiting)
            for member, position in written.items():
                before = states[member]
                handles[member].commit(operations(before, before.delivered_to_table(position)))
            return sum(map(len, waiting.values()))

    def flush_named(self, store: Store, session: Session, table_id: str, server: str) -> int:
        """Those of all record sets of the table that the server's store has: of subscriptions and members that are no more, too.
        Returns how many rows were written."""
        live = store_of(store, server).sessions().keys()
        found: dict[str, dict[int, str]] = defaultdict(dict)
        for record in store.names(addressed(server, f"{MEMBERS_PREFIX}{table_id}/")):
            state = read_state(store, record)
            if state.outbox and not state.is_attended(live):
                subscription, member = record.rsplit("/", 2)[-2:]
                found[subscription][int(member)] = record
        return sum(self.flush(session, table_id, name, records) for name, records in found.items())


def position_id(table_id: str, subscription: str, member: int) -> str:
    """The txn app id that keeps the position of one record set. Of the table, because positions of a destination that is
    created again start at 1 again."""
    return f"ack/{table_id}/{subscription}/{member}"


def decide_rows(snapshot: Snapshot, staged: StagedRows, now: int) -> Decision | None:
    """Pure. Append the rows, and keep the positions in the same commit."""
    if not staged.positions:
        return None
    positions: list[Action] = [
        {"txn": {"appId": app_id, "version": position, "lastUpdated": now}}
        for app_id, position in staged.positions.items()
    ]
    return Decision("WRITE", [*number(snapshot, staged.files, now).actions, *positions], {"mode": "Append"})


# -- life-cycle events -------------------------------------------------------------------------------------------------


class LifeCycleTable:
    """The life-cycle table of the destination whose messages are in the table `table_id`."""

    def __init__(self, table: DeltaLog, table_id: str) -> None:
        self.table, self.table_id = table, table_id

    def write(self, subscription: str, waiting: Mapping[int, Sequence[LoggedEvent]]) -> dict[int, int]:
        """Write the waiting events of these members in one commit. Returns up to which position the table has each."""
        ids = {member: events_id(self.table_id, subscription, member) for member in waiting}
        self._write(
            subscription, lambda snapshot: {ids[member]: (member, events) for member, events in waiting.items()}
        )
        return {member: max(event.position for event in events) for member, events in waiting.items() if events}

    def write_sent(self, messages: Snapshot) -> None:
        """Write the sent messages that the table lacks."""
        if not sent_events(messages, self.table.refresh()):
            return

        def missing(snapshot: Snapshot) -> dict[str, _Events]:
            found = sent_events(messages, snapshot)
            return {sent_id(messages.table_id, member): (member, events) for member, events in found.items()}

        self._write("", missing)

    def _write(self, subscription: str, missing: _Missing) -> None:
        staged = StagedRows()

        def prepare(snapshot: Snapshot) -> StagedRows:
            nonlocal staged
            discard(self.table.storage, staged.files)
            staged = StagedRows()
            for app_id, (member, events) in missing(snapshot).items():
                known = snapshot.transactions.get(app_id, 0)
                if new := [event for event in events if event.position > known]:
                    staged.files.append(_stage(self.table.storage, member, subscription, app_id, new))
                    staged.positions[app_id] = new[-1].position
            return staged

        now = now_ms()
        commit_prepared(self.table, prepare, lambda snapshot, ready: decide_rows(snapshot, ready, now))


def opened_table(domain: Domain, destination: str) -> DeltaLog:
    """Of a destination that logs. Raises InvalidDestinationError when it was deleted by hand."""
    table = domain.life_cycle(destination)
    if table is None:
        raise InvalidDestinationError(
            f"{destination} has no life-cycle table, so its events wait: apply the module file again, which creates it"
        )
    return table


def flush_at_close(flush: Callable[[], None]) -> None:
    """Write a consumer's last events. What cannot be written now waits in the store, for the next consumer."""
    try:
        flush()
    except (JmsqError, StoreError, OSError) as error:
        log.warning("the last events of a life-cycle log wait in the store: %s", error)


def sent_events(messages: Snapshot, table: Snapshot) -> dict[int, list[LoggedEvent]]:
    """Pure. member -> the sent messages that `table` lacks, one event for each file. Their position is the last sequence. The
    time of messages whose file was purged already is not known: 0."""
    found: dict[int, list[LoggedEvent]] = {}
    for member in sorted(messages.numbered_members()):
        known, last = table.transactions.get(sent_id(messages.table_id, member), 0), messages.last_sequence(member)
        if known >= last:
            continue
        events = found.setdefault(member, [])
        for file in messages.member_files(member).overlapping(known + 1, last):
            if file.first > known + 1:
                events.append(_purged(known + 1, file.first - 1))
            events.append(_sent(max(file.first, known + 1), file))
            known = file.last
        if known < last:
            events.append(_purged(known + 1, last))
    return found


def _sent(first: int, file: DataFile) -> LoggedEvent:
    newest_ms = int(file.statistics.get("maxValues", {}).get("JMSTimestamp") or file.modified_ms)
    return LoggedEvent(LifeEvent.SENT, Ranges.of((first, file.last)), newest_ms, position=file.last)


def _purged(first: int, last: int) -> LoggedEvent:
    return LoggedEvent(LifeEvent.SENT, Ranges.of((first, last)), 0, detail="purged already", position=last)


def _stage(storage: Storage, member: int, subscription: str, app_id: str, events: Sequence[LoggedEvent]) -> StagedFile:
    now = now_ms()
    columns = {
        "ordinal": range(len(events)),
        "key": [f"{app_id}/{event.position}" for event in events],
        "event": [event.event.value for event in events],
        "happened_ms": [event.at_ms or now for event in events],
        "subscription": [subscription] * len(events),
        "consumer": [event.consumer for event in events],
        "claim": [event.claim for event in events],
        "messages": [event.picks.count for event in events],
        "first": [event.picks.first for event in events],
        "last": [event.picks.last for event in events],
        "ranges": [json.dumps(event.picks.to_json()) for event in events],
        "detail": [event.detail for event in events],
    }
    writer = FileWriter(storage, member, LIFE_CYCLE_SCHEMA)
    arrays = [pa.array(columns[field.name], field.type) for field in LIFE_CYCLE_SCHEMA]
    writer.append(pa.RecordBatch.from_arrays(arrays, schema=LIFE_CYCLE_SCHEMA))
    return writer.close()
