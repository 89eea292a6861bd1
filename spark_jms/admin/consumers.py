"""The live consumers of a destination: who they are, and which members they hold. Only reads.

Features: C14 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.claims import views
from spark_jms.claims.members import session_label
from spark_jms.log.domain import Domain
from spark_jms.store import Store


@dataclass(frozen=True)
class ConsumerRow:
    """A query or client that lives. `consumer` is its id, as in its claims; of a query that of its checkpoint. `process` says
    where a query runs, "" of a client. It holds the records of `members` now, and has claimed `claimed` messages that it has not
    finished."""

    destination: str
    subscription: str
    consumer: str
    process: str
    members: tuple[int, ...]
    claimed: int


def consumers(domain: Domain, store: Store, destination: str) -> list[ConsumerRow]:
    """By subscription and consumer; one without messages is there too. Raises InvalidDestinationError."""
    held = views.subscriptions(domain, store, destination)
    claims = views.claims(domain, store, destination)
    labels = sorted(session.label for session in store.sessions().values())
    found = []
    for name in dict.fromkeys(row.subscription for row in held):
        begins = session_label(destination, name, "")
        processes: dict[str, str] = {}  # a consumer of several servers has a session on each
        for label in (label for label in labels if label.startswith(begins)):
            consumer, _, process = label.removeprefix(begins).partition(", ")
            processes.setdefault(consumer, process)
        for consumer, process in processes.items():
            members = tuple(
                row.member for row in held if row.subscription == name and _is_of(row.holder, begins + consumer)
            )
            claimed = sum(
                row.messages for row in claims if row.subscription == name and row.consumer == consumer and row.live
            )
            found.append(ConsumerRow(destination, name, consumer, process, members, claimed))
    return found


def _is_of(holder: str | None, label: str) -> bool:
    return holder is not None and holder.partition(", ")[0] == label
