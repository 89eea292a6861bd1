"""The state of a destination's acknowledgement table.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from spark_jms.claims import views
from spark_jms.claims.acknowledgement_table import position_id
from spark_jms.claims.record_sets import state_of
from spark_jms.core.destination import QUEUE_SUBSCRIPTION
from spark_jms.log.domain import Domain
from spark_jms.store import Store


@dataclass(frozen=True)
class AcknowledgementState:
    """Counts of acknowledgements (`rows`) and of the messages they name; `waiting` rows are still in the outbox."""

    subscription: str
    member: int
    rows: int
    messages: int
    waiting: int
    last_consumer: str | None
    last_acknowledged: datetime | None


def acknowledgement_states(
    domain: Domain, store: Store, destination: str, rows: Sequence[views.AcknowledgementRow]
) -> list[AcknowledgementState]:
    """One state per subscription and member. `rows` are those of views.acknowledgements, oldest first."""
    snapshot = domain.log(destination).snapshot
    declared = snapshot.destination
    there = {(row.subscription, row.member) for row in rows}
    keys = there | {(name, member) for name in declared.subscription_names() for member in declared.member_ids}
    out = []
    for name, member in sorted(keys):
        own = [row for row in rows if (row.subscription, row.member) == (name, member)]
        state = state_of(store, snapshot, name or QUEUE_SUBSCRIPTION, member)
        app_id = position_id(snapshot.table_id, name, member)
        position = domain.acknowledgements(destination).snapshot.transactions.get(app_id, 0)
        last = own[-1] if own else None
        out.append(
            AcknowledgementState(
                name,
                member,
                len(own),
                sum(row.messages for row in own),
                sum(a.position > position for a in state.outbox),
                last.consumer if last else None,
                last.acknowledged if last else None,
            )
        )
    return out
