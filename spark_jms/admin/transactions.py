"""The open transactions of a domain, as `jmsq transactions` shows them.

Features: C14, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from spark_jms.claims.coordinators import Coordinators, open_transactions
from spark_jms.claims.views import moment
from spark_jms.log.domain import Domain
from spark_jms.store import Store

DAMAGED = "damaged"


@dataclass(frozen=True)
class TransactionRow:
    """`waits`: the steps that are left of a transaction that is decided, and what keeps them back. `owner_lives`: its own process
    completes it; otherwise any other does. Of a coordinator that cannot be read there is a row too, `DAMAGED`: `transaction` names
    its record, `waits` the damage, and the rest is unknown."""

    transaction: str
    state: str
    made: datetime | None
    owner: str
    owner_lives: bool
    targets: tuple[str, ...]
    origins: tuple[str, ...]
    waits: tuple[str, ...]


def transactions(domain: Domain, store: Store) -> list[TransactionRow]:
    """Oldest first, behind coordinators that cannot be read. Changes nothing."""
    looks = open_transactions(domain, store)
    damaged = [
        TransactionRow(record, DAMAGED, None, "", False, (), (), (problem,))
        for record, problem in looks.damaged.items()
    ]
    return damaged + [
        TransactionRow(
            str(look.transaction.ticket),
            look.transaction.state.value,
            moment(look.transaction.made_ms),
            look.transaction.owner,
            look.owner_lives,
            tuple(target.destination for target in look.transaction.targets),
            tuple(sorted({origin.destination for origin in look.transaction.origins})),
            look.waits,
        )
        for look in looks.open
    ]


def decide_transaction(domain: Domain, store: Store, transaction: str, *, commit: bool) -> tuple[str, ...]:
    """A transaction in doubt whose database is lost. Returns why it does not end. Raises IllegalStateException."""
    coordinators = Coordinators(domain, store)
    try:
        return coordinators.force(transaction, commit=commit)
    finally:
        coordinators.close()


def complete_transactions(domain: Domain, store: Store) -> tuple[str, ...]:
    """Those whose owners are dead, as housekeeping does. Returns why some do not end."""
    coordinators = Coordinators(domain, store)
    try:
        return coordinators.recover()
    finally:
        coordinators.close()
