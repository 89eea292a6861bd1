"""The messages that a consumer of a transacted session has delivered: pledged, then acknowledged or returned.

Features: C15, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from spark_jms.claims.acknowledger import Parts
from spark_jms.claims.distributed import AnySubscriber
from spark_jms.client.delivery import Delivery, Key, parts_of
from spark_jms.core.destination import is_temporary
from spark_jms.core.record_names import member_record
from spark_jms.core.subscription_place import record_server
from spark_jms.core.transaction import TransactionOrigin
from spark_jms.core.transfer import Ticket
from spark_jms.errors import MemberUnavailableError

_MAX_PAUSE_S = 0.02


class TransactedDelivery:
    """Of one consumer. The session's lock guards it; `lock` guards `delivery` and is never held during a store call. `boundary`
    hands over our own records while we wait for those of others."""

    def __init__(
        self, subscriber: AnySubscriber, delivery: Delivery, lock: threading.RLock, boundary: Callable[[], object]
    ) -> None:
        self._subscriber, self._delivery, self._lock, self._boundary = subscriber, delivery, lock, boundary
        self._pledged: dict[Key, str] = {}
        self._left: Parts = {}  # of them: perhaps not pledged yet

    @property
    def dies_with_context(self) -> bool:
        """The record sets are in this process's memory: nothing of them is to be recovered."""
        return is_temporary(self._subscriber.destination)

    def delivered(self) -> dict[Key, str]:
        """What the application has received since the last commit or rollback, with its claims."""
        with self._lock:
            return dict(self._delivery.delivered)

    def origins(self, keys: Mapping[Key, str]) -> list[TransactionOrigin]:
        subscriber, declared = self._subscriber, self._subscriber.table.snapshot.destination
        return [
            TransactionOrigin(
                record_server(declared, subscriber.subscription, member),
                member_record(subscriber.table_id, subscriber.subscription, member),
                subscriber.destination,
                subscriber.subscription,
                member,
            )
            for member in sorted({member for member, _ in keys})
        ]

    def acknowledge_whole(self, keys: Mapping[Key, str]) -> bool:
        """In one write, or not at all: False when they are on several servers, or another consumer holds a record."""
        if self._subscriber.acknowledge(parts_of(keys), whole=True):
            return False
        with self._lock:
            self._delivery.pledge(keys)
            self._delivery.end_pledge(len(keys), committed=True)
        return True

    def pledge(self, keys: Mapping[Key, str], ticket: Ticket, coordinator: str, timeout_s: float) -> None:
        """Raises MemberUnavailableError when another consumer does not hand over a record in time, or a server does not answer,
        and ConsumerClosedException. Then some of them may be pledged."""
        deadline, pause = time.monotonic() + timeout_s, 0.001
        self._pledged, self._left = dict(keys), parts_of(keys)
        with self._lock:
            self._delivery.pledge(keys)  # they belong to the transaction, even if the next steps fail
        while True:
            self._left = self._subscriber.pledge(self._left, ticket, coordinator)
            if not self._left:
                return
            if time.monotonic() >= deadline:
                raise MemberUnavailableError(
                    f"{self._subscriber.destination}: another consumer holds a member's record and did not hand it over "
                    f"within {timeout_s:.0f} s; see who holds it with `jmsq claims`"
                )
            time.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE_S)
            self._boundary()

    def end(self, ticket: Ticket, *, committed: bool, complete: bool = True) -> None:
        """The transaction is decided. Where another consumer holds the record by now, that one acknowledges or returns them. What
        was not pledged when the transaction was rolled back is on its way back. `complete` False: a target follows, and the pledges
        stay until it has its messages."""
        keys, left = self._pledged, self._left
        self._pledged, self._left = {}, {}
        if not keys:
            return
        with self._lock:
            self._delivery.end_pledge(len(keys), committed=committed)
            self._delivery.give_back_parts(left)
        if complete:
            self._subscriber.end_pledges({member for member, _ in keys}, ticket, committed=committed)

    def acknowledge(self, keys: Mapping[Key, str]) -> None:
        """Of a temporary destination, whose record sets this process has to itself."""
        with self._lock:
            self._delivery.pledge(keys)
            self._delivery.end_pledge(len(keys), committed=True)
        self._subscriber.acknowledge(parts_of(keys))
