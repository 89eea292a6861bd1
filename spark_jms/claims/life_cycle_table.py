"""Writing the life-cycle table of a destination.

Two writers, and neither of them on the way of a send or a receive:

    events of record sets   a consumer's background thread, about once a second; they wait in the record set until then
    sent messages           housekeeping, in each round (log/life_cycle.py)

A transaction of the table keeps the position up to which it has a record set's events, or a member's sent messages. So a
write that is repeated, by whatever process and after whatever crash, adds nothing, and each row's `key` is unique.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from spark_jms.claims.acknowledgement_table import StagedRows, decide_rows
from spark_jms.core.life_cycle import LoggedEvent
from spark_jms.core.staged_file import StagedFile
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.acknowledgements import LIFE_CYCLE_SCHEMA
from spark_jms.log.commit import commit_prepared
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.file_writer import FileWriter
from spark_jms.log.life_cycle import events_id, sent_events, sent_id
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import Storage, now_ms
from spark_jms.store import StoreError

log = logging.getLogger("spark_jms")
_Events = tuple[int, Sequence[LoggedEvent]]  # member, in the order of their positions
_Missing = Callable[[Snapshot], Mapping[str, _Events]]  # by the txn app id of their position


class LifeCycleTable:
    """Of the destination whose messages are in the table `table_id`."""

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
