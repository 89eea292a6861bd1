"""The commit of a transaction that has several destinations or consumers, by its owner.

core/transactions/transaction.py has the steps, and claims/transactions/transaction.py does what is left of them for a dead owner.

Features: T7, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from spark_jms.claims.transactions.last_resource import LastResource, roll_back_connection
from spark_jms.claims.transactions.transaction import Coordinator, Coordinators
from spark_jms.client.receiving.delivery import Key, TransactedDelivery
from spark_jms.client.receiving.receiver import WRITE_TIMEOUT_S
from spark_jms.client.sending.shared_send import OutgoingMessages
from spark_jms.core.destinations.routing import Balancing
from spark_jms.core.transactions.transfer import Ticket, TransferTarget
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    JmsqError,
    LastResourceError,
    OptionError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.messages.data_files import discard
from spark_jms.log.messages.paging import MessageBuffer, PagedRows
from spark_jms.log.sending.send import Room
from spark_jms.log.sending.transfer import (
    ROW_COLUMNS,
    CollectedRows,
    StagedSends,
    admit,
    append_transfer,
    stage_collected,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import FencedError, StoreError

log = logging.getLogger("spark_jms")


@dataclass(frozen=True)
class OpenResource:
    """A last resource, and the application's connection to it."""

    resource: LastResource
    connection: Any


class CollectedSends:
    """The messages that a transacted session has sent to one destination and not committed, in the order in which they were sent. What
    exceeds the connection's message buffer pages. The session's lock guards it."""

    def __init__(self, log: DeltaLog, buffer: MessageBuffer) -> None:
        self.log, self._buffer = log, buffer
        self.table_id = log.snapshot.table_id
        self.wait_s = 0.0  # the longest send time-out of the producers
        self._runs: list[tuple[tuple[Balancing, str], int, PagedRows]] = []
        self._token, self._numbers = secrets.token_urlsafe(12), itertools.count()
        self.count = 0

    def add(self, rows: pa.RecordBatch, outgoing: OutgoingMessages) -> Sequence[str]:
        """Returns the ids of the messages."""
        ids = [f"ID:{self._token}-{next(self._numbers)}" for _ in range(rows.num_rows)]
        named = pa.RecordBatch.from_arrays([pa.array(ids, pa.string()), *rows.columns], names=list(ROW_COLUMNS))
        by = outgoing.balancing, outgoing.producer
        if not self._runs or self._runs[-1][0] != by:
            self._runs.append((by, outgoing.turn, PagedRows(self._buffer)))
        self._runs[-1][2].append(named)
        self.wait_s = max(self.wait_s, outgoing.wait_s)
        self.count += rows.num_rows
        return ids

    def rows(self) -> list[CollectedRows]:
        return [CollectedRows(rows, balancing, turn, producer) for (balancing, producer), turn, rows in self._runs]

    def clear(self) -> None:
        runs, self._runs, self.count = self._runs, [], 0
        for _, _, rows in runs:
            rows.clear()


Delivered = Sequence[tuple[TransactedDelivery, dict[Key, str]]]


class CoordinatedCommit:
    """One transaction of several stores and logs, with the steps of core/transactions/transaction.py."""

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
            delivery.pledge(keys, ticket, self._coordinator.record, WRITE_TIMEOUT_S)
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
