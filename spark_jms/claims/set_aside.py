"""A message that cannot be decoded is set aside, so that its neighbours are delivered (C20). One in a unit of work takes the unit
along, in one transfer: a part of the unit that stayed would never be complete (T12).

It moves by a transfer to the queue `jmsq-set-aside` of the domain, which is created when it is first needed. There its
properties are text, without their types, and three of them say where it came from and why:

    JMS_JMSQ_SetAsideFrom    destination/subscription/member#sequence
    JMS_JMSQ_SetAsideReason  the error
    JMS_JMSQ_SetAsideTypes   the types that its sender had declared

`jmsq move jmsq-set-aside orders` brings it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from spark_jms.claims.fetch import fetch
from spark_jms.claims.members import Members
from spark_jms.claims.transfer import Movement, Transfers
from spark_jms.core.destination import Destination
from spark_jms.core.message import COLUMNS
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.typed_properties import TYPES_PROPERTY
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.transfer import ROW_COLUMNS

SET_ASIDE = "jmsq-set-aside"
FROM, REASON, TYPES = "JMS_JMSQ_SetAsideFrom", "JMS_JMSQ_SetAsideReason", "JMS_JMSQ_SetAsideTypes"
_MAX_MESSAGE_BYTES = 2**30  # the largest limit a destination can have


def set_aside(
    domain: Domain,
    table: DeltaLog,
    members: Members,
    transfers: Transfers,
    claim: str,
    member: int,
    reasons: Mapping[int, str],
) -> bool:
    """Move claimed messages aside, all or none; `reasons` tells by sequence why each cannot be delivered. False when another
    consumer holds the record: it has been asked for it; try again. Messages that this consumer does not hold any more are left to
    their new holder."""
    if not members.open(member):
        return False
    state = members.attached_state(member)
    held = state.claims.get(claim)
    picks = EMPTY if held is None else held.picks & Ranges.from_numbers(sorted(reasons))
    if not picks:
        return True
    if SET_ASIDE not in domain.destinations():
        queue = Destination(SET_ASIDE, "queue", 1, max_message_bytes=_MAX_MESSAGE_BYTES)
        apply_destinations(domain, [queue], lambda destination, member: False)
    columns = (*ROW_COLUMNS, "sequence")
    found = fetch(table, members.destination, member, picks, {}, columns=columns, table_id=members.table_id)
    rows = _described(found, members.label(member), reasons)
    why = reasons[min(reasons)]
    movement = Movement(claim, picks, rows, SET_ASIDE, None, members.consumer, f"set aside: {why}")
    epoch = members.held[member].handle.epoch
    transfers.carry_out(state, movement, epoch, lambda after: members.commit({member: after}))
    return True


def _described(batches: Iterator[pa.RecordBatch], label: str, reasons: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    at = ROW_COLUMNS.index("properties")
    for batch in batches:
        described = [
            _description(dict(row or ()), f"{label}#{sequence}", reasons[sequence])
            for row, sequence in zip(batch.column(at).to_pylist(), batch.column("sequence").to_pylist(), strict=True)
        ]
        properties = pa.array([list(d.items()) for d in described], COLUMNS["properties"])
        yield batch.select(list(ROW_COLUMNS)).set_column(at, "properties", properties)


def _description(properties: dict[str, str], origin: str, why: str) -> dict[str, str]:
    kept = {name: text for name, text in properties.items() if name != TYPES_PROPERTY}
    return {**kept, FROM: origin, REASON: why, TYPES: properties.get(TYPES_PROPERTY, "")}
