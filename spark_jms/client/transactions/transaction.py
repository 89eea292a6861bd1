"""The transaction of a transacted session: what it has collected, and how it ends.

what it has                                   commit() is
-----------                                   -----------
messages for one destination                  one commit of its log
messages of one consumer, on one server       one write of the store
only changes of its last resource             the commit of that connection
anything else                                 a coordinated commit, with the steps of core/transactions/transaction.py

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from spark_jms.claims.transactions.last_resource import LastResource, roll_back_connection
from spark_jms.claims.transactions.transaction import Coordinator, Coordinators
from spark_jms.client.receiving.receiver import Receiver
from spark_jms.client.sending.shared_send import OutgoingMessages
from spark_jms.client.transactions.coordinated_commit import CollectedSends, CoordinatedCommit, Delivered, OpenResource
from spark_jms.errors import (
    CommitOutcomeUnknownError,
    IllegalStateException,
    JmsqError,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.messages.paging import MessageBuffer
from spark_jms.log.sending.send import send
from spark_jms.log.sending.transfer import stage_collected
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.store import OutcomeUnknownError, StoreError

log = logging.getLogger("spark_jms")


class SessionTransaction:
    """The transaction of one session: what it has collected, and its end. `lock` makes sends, commit and rollback one at a time;
    the consumers receive beside it."""

    def __init__(
        self,
        coordinators: Coordinators,
        timeout_s: float,
        sent: Callable[[DeltaLog, int], None],
        buffer: MessageBuffer,
        resource: LastResource | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`sent` is told of each log that has got messages, with its version."""
        self.lock = threading.RLock()
        self.receivers: list[Receiver] = []
        self._coordinators, self._timeout_s, self.monotonic_s = coordinators, timeout_s, monotonic_s
        self._sent, self._buffer, self._resource = sent, buffer, resource
        self.database: OpenResource | None = None
        self._coordinator: Coordinator | None = None
        self._sends: dict[str, CollectedSends] = {}  # table -> what goes there
        self._began_s: float | None = None
        self.timed_out = False

    # -- collecting -----------------------------------------------------------------------------------------------
    def collect(self, log: DeltaLog, rows: pa.RecordBatch, outgoing: OutgoingMessages) -> Sequence[str]:
        """Of a producer of the session; returns the ids of the messages. Raises TransactionRolledBackException after the time-out."""
        with self.lock:
            self._check_time()
            self._began_s = self._began_s or self.monotonic_s()
            sends = self._sends.setdefault(log.snapshot.table_id, CollectedSends(log, self._buffer))
            return sends.add(rows, outgoing)

    def connection(self) -> Any:
        """To the last resource, for the application's own changes. Raises IllegalStateException when the session has none."""
        with self.lock:
            if self._resource is None:
                raise IllegalStateException(
                    "this session has no last resource: transacted_session(last_resource=…), after context.last_resource(…)"
                )
            if self.database is None:
                self.database = OpenResource(self._resource, self._resource.opened())
            return self.database.connection

    def leave(self, name: str) -> None:
        """This consumer is closed."""
        with self.lock:
            self.receivers = [one for one in self.receivers if one.name != name]

    def end_late(self) -> None:
        """A background thread calls this once a second: roll back what has taken too long. The clock begins with the first send, or
        within a second of the first message."""
        if not self.lock.acquire(blocking=False):
            return  # it is about to end
        try:
            has_work = bool(self._sends) or any(one.transacted.delivered() for one in self.receivers)
            if not has_work or self.timed_out:
                return
            self._began_s = self._began_s or self.monotonic_s()
            if self.monotonic_s() - self._began_s >= self._timeout_s:
                failed = self._released()  # the connection belongs to the application's thread
                self.timed_out = True
                if failed:
                    raise failed[0]
        finally:
            self.lock.release()

    def _check_time(self) -> None:
        if self.timed_out:
            raise TransactionRolledBackException(
                f"the transaction took longer than {self._timeout_s:g} s and was rolled back: nothing was sent, and its messages "
                "are delivered again, flagged. Call rollback(), then begin again"
            )

    # -- ending ---------------------------------------------------------------------------------------------------
    def commit(self) -> None:
        """See `TransactedSession.commit`."""
        with self.lock:
            try:
                self._check_time()
                self._commit()
            except (TransactionUnfinishedError, CommitOutcomeUnknownError, TransactionRolledBackException):
                # it has ended, in any way: what consumers still have comes again, and a connection that is lost is replaced
                self._roll_back_quietly()
                raise
            except (JmsqError, StoreError, OSError) as error:
                self._roll_back_quietly()
                raise TransactionRolledBackException(
                    f"the transaction was rolled back: {type(error).__name__}: {error}"
                ) from error
            except BaseException:  # an interrupt
                self._roll_back_quietly()
                raise
            self._forget()

    def roll_back(self) -> None:
        """Forget the sends, and release what the consumers have delivered: it comes again, flagged and counted. Raises the first error
        of a consumer that cannot release now; the transaction is rolled back all the same, and that consumer releases later."""
        with self.lock:
            self._roll_back_database()
            failed = self._released()
        if failed:
            raise failed[0]

    def _released(self) -> list[Exception]:
        """Take everything out of the transaction, in memory, and then release it where that can be done now. Returns why it cannot:
        the consumer's background thread tries again, and what has no session any more is released by the store."""
        self._forget()
        for receiver in self.receivers:
            receiver.give_back()
        failed: list[Exception] = []
        for receiver in self.receivers:
            try:
                receiver.recover()
            except (JmsqError, StoreError, OSError) as error:
                failed.append(error)
        return failed

    def close(self) -> None:
        with self.lock:
            self._forget()
            self._roll_back_database()
            self._close_database()

    def _roll_back_database(self) -> None:
        """A connection that cannot roll back is lost: `connection()` opens another."""
        if self.database is not None and not roll_back_connection(self.database.connection):
            self._close_database()

    def _close_database(self) -> None:
        database, self.database = self.database, None
        if database is not None:
            with suppress(Exception):  # lost; or SQLite's, of another thread: the garbage collector closes it
                database.connection.close()

    def _roll_back_quietly(self) -> None:
        """While an error is raised already."""
        self._roll_back_database()
        for error in self._released():
            log.warning("a transaction is rolled back, and its messages come again later: %s", error)

    def _forget(self) -> None:
        for sends in self._sends.values():
            sends.clear()
        self._sends, self._began_s, self.timed_out = {}, None, False

    def _leave_coordinator(self) -> None:
        """The next process that opens the coordinator completes the transactions that are open there."""
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            with suppress(StoreError):
                self._coordinators.give_back(coordinator)

    def _commit(self) -> None:
        found = [(one.transacted, keys) for one in self.receivers if (keys := one.transacted.delivered())]
        durable = [(one, keys) for one, keys in found if not one.dies_with_context]
        sends = list(self._sends.values())
        if not (durable or sends):
            if self.database is not None:
                self.database.resource.commit(self.database.connection)
        elif self.database is not None or not self._commit_at_once(sends, durable):
            try:
                self._coordinate(sends, durable)
            except TransactionUnfinishedError:  # it is decided
                _acknowledge_temporary(found)
                raise
        _acknowledge_temporary(found)
        for each in sends:
            self._sent(each.log, each.log.snapshot.version)

    def _commit_at_once(self, sends: Sequence[CollectedSends], durable: Delivered) -> bool:
        """By one commit of a log, or one write of a store; False: it takes more."""
        if not durable and len(sends) == 1:
            self._send(sends[0])
            return True
        try:
            return not sends and len(durable) == 1 and durable[0][0].acknowledge_whole(durable[0][1])
        except OutcomeUnknownError as error:
            raise CommitOutcomeUnknownError(
                f"the store failed while it acknowledged {len(durable[0][1])} message(s) of the transaction ({error}): they are "
                "acknowledged, or delivered again"
            ) from error

    def _coordinate(self, sends: Sequence[CollectedSends], durable: Delivered) -> None:
        """With a coordinator that belongs to this session for so long."""
        self._coordinator = self._coordinators.take()
        try:
            CoordinatedCommit(self._coordinators, self._coordinator, sends, durable, self.database).run(
                self._leave_coordinator
            )
        except Exception:
            self._keep_coordinator()
            raise
        except BaseException:  # an interrupt: the store may know more than `state`
            self._leave_coordinator()
            raise
        self._keep_coordinator()

    def _keep_coordinator(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is not None:
            with suppress(StoreError):
                self._coordinators.keep(coordinator)

    def _send(self, sends: CollectedSends) -> None:
        """Everything for one destination: one commit of its log."""
        staged = stage_collected(sends.log, sends.rows(), sends.table_id)
        send(sends.log, staged.files, staged.snapshot.route_id, wait_s=sends.wait_s)


def _acknowledge_temporary(found: Delivered) -> None:
    """Behind the decision. Raises nothing: what fails here ends with the context."""
    for one, keys in found:
        if one.dies_with_context:
            try:
                one.acknowledge(keys)
            except (JmsqError, StoreError, OSError) as error:
                log.warning(
                    "a transaction is committed, and messages of a temporary destination are not acknowledged: %s",
                    error,
                )
