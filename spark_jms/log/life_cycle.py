"""Which sent messages a destination's life-cycle table lacks.

No send writes to it. A message is sent when the log of the destination's own table has it, so `sent_events` reads the numbers
of that table: whatever process writes them here, and whenever, no message is missed and none is named twice.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.core.life_cycle import LoggedEvent
from spark_jms.core.life_event import LifeEvent
from spark_jms.core.ranges import Ranges
from spark_jms.log.data_file import DataFile
from spark_jms.log.snapshot import Snapshot


def sent_id(table_id: str, member: int) -> str:
    """The txn app id that keeps up to which message the sent ones of a member are in the table."""
    return f"sent/{table_id}/{member}"


def events_id(table_id: str, subscription: str, member: int) -> str:
    """The txn app id that keeps up to which event of a record set is in the table."""
    return f"life/{table_id}/{subscription}/{member}"


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
