"""A message that cannot be decoded is set aside, so that its neighbours are delivered. One in a unit of work takes the unit
along, in one transfer: a part of the unit that stayed would never be complete.

It moves by a transfer to the queue `jmsq-set-aside` of the domain, which is created when it is first needed. There its
properties are text, without their types; text that is not UTF-8 is readable (core/utf8.py), and as `text` it becomes the body, byte
by byte. Three properties say where the message came from and why:

    JMS_JMSQ_SetAsideFrom    destination/subscription/member#sequence
    JMS_JMSQ_SetAsideReason  the error
    JMS_JMSQ_SetAsideTypes   the types that its sender had declared

`jmsq move jmsq-set-aside orders` brings it back.

Features: C20, T12 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.claims.error_destination import with_refusals
from spark_jms.claims.fetch import fetch
from spark_jms.claims.members import Members
from spark_jms.claims.transfer import Movement, Transfers
from spark_jms.core.destination import Destination
from spark_jms.core.error_message import SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.refusal import ASIDE, NO_RULE, MessageRefusal
from spark_jms.core.target_rules import SEQUENCE, Sieve
from spark_jms.core.typed_properties import TYPES_PROPERTY
from spark_jms.core.utf8 import is_valid, map_column, map_rows, readable_rows
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.log.transfer import ROW_COLUMNS

SET_ASIDE = "jmsq-set-aside"
FROM, REASON, TYPES = SET_ASIDE_FROM, SET_ASIDE_REASON, SET_ASIDE_TYPES
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
    """Move claimed messages aside: one, or the parts of a unit of work, all or none. `reasons` tells by sequence why each cannot be
    delivered. What the queue refuses for good stays, and no client gets it. False when another consumer holds the record: it has been
    asked for it; try again. Messages that this consumer does not hold any more are left to their new holder."""
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
    epoch, label = members.held[member].handle.epoch, members.label(member)
    while picks:
        state = members.attached_state(member)
        declared = transfers.declared(SET_ASIDE)
        begun = transfers.begin_fitting(state, picks, _Aside(table, members, claim, member, reasons))
        refusal = MessageRefusal(EMPTY, ASIDE, reasons[picks.first], SET_ASIDE, declared, NO_RULE, now_ms())
        after = with_refusals(begun, claim, refusal, label, delivered=False)
        members.commit({member: after})
        members.commit({member: transfers.finish(after, epoch).state})
        picks = picks - after.moving - after.refused
    return True


@dataclass(frozen=True)
class _Aside:
    """See `Fitting`."""

    table: DeltaLog
    members: Members
    claim: str
    member: int
    reasons: Mapping[int, str]
    target: str = SET_ASIDE
    whole_units: bool = True

    def movement(self, picks: Ranges, sieve: Sieve) -> Movement:
        columns, members = (*ROW_COLUMNS, SEQUENCE), self.members
        found = fetch(
            self.table, members.destination, self.member, picks, {}, columns=columns, table_id=members.table_id
        )
        rows = _described(found, members.label(self.member), self.reasons)
        why = self.reasons[min(self.reasons)]
        return Movement(self.claim, picks, rows, SET_ASIDE, None, members.consumer, f"set aside: {why}", sieve=sieve)


def _described(batches: Iterator[pa.RecordBatch], label: str, reasons: Mapping[int, str]) -> Iterator[pa.RecordBatch]:
    at = ROW_COLUMNS.index("properties")
    for batch in batches:
        rows = readable_rows(_with_bytes(batch.select(list(ROW_COLUMNS))))
        described = [
            _description(row or {}, f"{label}#{sequence}", reasons[sequence])
            for row, sequence in zip(map_rows(rows.column(at)), batch.column(SEQUENCE).to_pylist(), strict=True)
        ]
        yield rows.set_column(at, "properties", map_column(described)).append_column(SEQUENCE, batch.column(SEQUENCE))


def _with_bytes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The bytes of a text that is not UTF-8 are the body."""
    texts = rows.column("text")
    if is_valid(texts):
        return rows
    good = pa.array([is_valid(texts[row : row + 1]) for row in range(len(texts))])
    bodies = pc.if_else(good, rows.column("body"), texts.cast(pa.binary()))
    for name, column in (("text", pc.if_else(good, texts, pa.scalar(None, texts.type))), ("body", bodies)):
        rows = rows.set_column(ROW_COLUMNS.index(name), name, column)
    return rows


def _description(properties: Mapping[str, str], origin: str, why: str) -> dict[str, str]:
    kept = {name: text for name, text in properties.items() if name != TYPES_PROPERTY}
    return {**kept, FROM: origin, REASON: why, TYPES: properties.get(TYPES_PROPERTY, "")}
