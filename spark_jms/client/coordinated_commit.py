"""The commit of a transaction that has several destinations or consumers, by its owner. core/transaction.py has the steps,
and claims/coordinators.py does what is left of them for a dead owner.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spark_jms.claims.coordinators import Coordinator, Coordinators
from spark_jms.claims.last_resource import LastResource, roll_back_connection
from spark_jms.client.collected_sends import CollectedSends
from spark_jms.client.delivery import Key
from spark_jms.client.receiver import HAND_OVER_TIMEOUT_S
from spark_jms.client.transacted_delivery import TransactedDelivery
from spark_jms.core.transfer import Ticket, TransferTarget
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    JmsqError,
    LastResourceError,
    OptionError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.collected_send import StagedSends, admit, stage_collected
from spark_jms.log.send import Room
from spark_jms.log.staged_file import discard
from spark_jms.log.storage import now_ms
from spark_jms.log.transfer import append_transfer
from spark_jms.store import FencedError, StoreError

log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class OpenResource:
    """A last resource, and the application's connection to it."""

    resource: LastResource
    connection: Any


Delivered = Sequence[tuple[TransactedDelivery, dict[Key, str]]]


class CoordinatedCommit:
    """One transaction of several stores and logs, with the steps of core/transaction.py."""

    def __init__(
        self,
        coordinators: Coordinators,
        coordinator: Coordinator,
        sends: Sequence[CollectedSends],
        deliveries: Delivered,
        resource: OpenResource | None = None,
    ) -> None:
        """`resource` decides; None: the coordinator does."""
        self._resource = resource
        self._coordinators, self._coordinator = coordinators, coordinator
        self._sends, self._deliveries = sends, deliveries
        self._staged: list[StagedSends] = []
        self._rooms: list[Room] = []
        self._decided = False

    def run(self, leave: Callable[[], None]) -> None:
        """Raises TransactionUnfinishedError when the transaction is decided and a target does not have its messages yet,
        CommitOutcomeUnknownError, and any other error when it was rolled back. `leave` gives up the coordinator: the next process
        that opens it ends what is open there."""
        try:
            targets = self._prepare()
            self._decide(targets)
        except CommitOutcomeUnknownError:
            leave()
            raise
        except BaseException as error:
            if self._decided:
                leave()
                raise
            self._roll_back(leave)
            if isinstance(error, FencedError):
                raise TransactionRolledBackException(
                    f"the transaction was rolled back by another process, because this one stood still: {error}"
                ) from error
            raise
        self.complete(targets, leave)

    # -- before the decision --------------------------------------------------------------------------------------
    def _prepare(self) -> list[TransferTarget]:
        """Steps 1 to 3."""
        named = [TransferTarget(one.log.name, one.table_id, ()) for one in self._sends]
        self._coordinator.use_fresh_numbers([one.log for one in self._sends], self._knows)
        origins = [origin for one, keys in self._deliveries for origin in one.origins(keys)]
        self._coordinator.begin(named, origins, now_ms())
        ticket = self._ticket
        for one in self._sends:
            self._staged.append(stage_collected(one.log, one.rows(), one.table_id, ticket))
        targets = [
            TransferTarget(one.log.name, staged.snapshot.table_id, staged.files)
            for one, staged in zip(self._sends, self._staged, strict=True)
        ]
        for one, staged, target in zip(self._sends, self._staged, targets, strict=True):
            deadline = time.monotonic() + one.wait_s
            self._rooms.append(admit(one.log, target, ticket, staged.snapshot.route_id.epoch, deadline))
        for delivery, keys in self._deliveries:
            delivery.pledge(keys, ticket, self._coordinator.record, HAND_OVER_TIMEOUT_S)
        return targets

    def _knows(self, ticket: Ticket) -> bool:
        resource = self._resource
        return resource is not None and resource.resource.knows(resource.connection, ticket)

    def _decide(self, targets: Sequence[TransferTarget]) -> None:
        """Step 4. From here on there is no way back."""
        if self._resource is not None:
            self._decide_in_database(self._resource, targets)
            return
        self._decided = True  # perhaps: an interrupt leaves it to the next process that opens the coordinator
        try:
            self._coordinator.decide(targets)
        except FencedError:
            self._decided = False
            raise
        except BaseException as error:
            self._decided = self._coordinators.has_decided(self._coordinator)
            if not self._decided or not isinstance(error, Exception):
                raise

    def _decide_in_database(self, resource: OpenResource, targets: Sequence[TransferTarget]) -> None:
        """Steps 4a to 4c. Until its commit is called, the application's transaction has decided nothing."""
        self._coordinator.prepare(targets, resource.resource.name)
        resource.resource.enter(resource.connection, self._ticket)
        self._decided = True  # perhaps: an interrupt leaves it to the next process that opens the coordinator
        try:
            resource.connection.commit()
        except BaseException as error:
            roll_back_connection(resource.connection)
            try:
                self._decided = resource.resource.is_committed(self._ticket)
            except (LastResourceError, OptionError) as unknown:
                raise CommitOutcomeUnknownError(
                    f"transaction {self._ticket} is in doubt: database {resource.resource.name} failed while it decided ({error}), "
                    f"and cannot tell ({unknown}). It is completed when the database answers; `jmsq transactions` shows it"
                ) from error
            if not isinstance(error, Exception):
                raise
            if not self._decided:
                raise LastResourceError(
                    f"database {resource.resource.name} has rolled back: {type(error).__name__}: {error}"
                ) from error
        try:
            self._coordinator.decide()
        except (JmsqError, StoreError, OSError) as error:
            raise TransactionUnfinishedError(
                f"transaction {self._ticket} is committed in database {resource.resource.name}, and its messages follow: the store "
                f"failed ({error}). Do not repeat it; `jmsq transactions` shows it"
            ) from error

    def _roll_back(self, leave: Callable[[], None]) -> None:
        """Raises nothing. Once the coordinator says so, what a consumer's next holder meets is returned."""
        ticket = self._coordinator.state.open.ticket if self._coordinator.state.open else None
        try:
            if ticket is not None:
                self._coordinator.roll_back()
        except (JmsqError, StoreError, OSError) as error:
            log.warning("the coordinator of transaction %s cannot be written: %s", ticket, error)
            leave()
        if ticket is None:
            leave()  # its first write failed
        for room in self._rooms:
            room.give_back()
        if ticket is not None:
            for delivery, _ in self._deliveries:
                with suppress(JmsqError, StoreError, OSError):
                    delivery.end(ticket, committed=False)
        try:
            for one, staged in zip(self._sends, self._staged, strict=False):
                discard(one.log.storage, staged.files)
            if ticket is not None and self._coordinator.state.open is not None:
                self._coordinator.end()
        except (JmsqError, StoreError, OSError) as error:
            log.warning("transaction %s is rolled back, and its files are left for clean-up: %s", ticket, error)
            leave()

    # -- behind it ------------------------------------------------------------------------------------------------
    def complete(self, targets: Sequence[TransferTarget], leave: Callable[[], None]) -> None:
        """Steps 5 to 7."""
        ticket, problems = self._ticket, list[str]()
        for one, target in zip(self._sends, targets, strict=True):
            try:
                append_transfer(one.log, target, ticket)
            except (JmsqError, StoreError, OSError) as error:
                problems.append(f"{target.destination}: {type(error).__name__}: {error}")
        for delivery, _ in self._deliveries:
            try:
                delivery.end(ticket, committed=True, complete=not problems)
            except (JmsqError, StoreError, OSError) as error:  # the next holder of the record acknowledges them
                log.warning("transaction %s is committed; an acknowledgement follows: %s", ticket, error)
        if problems:
            leave()
            raise TransactionUnfinishedError(
                f"transaction {ticket} is committed, and {len(problems)} of its destinations follow(s): {problems[0]}. Do not "
                "repeat it; `jmsq transactions` shows it"
            )
        try:
            if self._coordinators.complete(self._coordinator):
                leave()
        except (JmsqError, StoreError, OSError) as error:
            log.warning("transaction %s is complete, and its coordinator still says that it is open: %s", ticket, error)
            leave()

    @property
    def _ticket(self) -> Ticket:
        return self._coordinator.state.transaction.ticket
