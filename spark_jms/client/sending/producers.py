"""What one producer keeps from send to send: its numbers, commits of its own, and one-way sends.

The rules of numbers and of one-way sends are in core/transactions/producers.py.

Features: M1, T11 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa

from spark_jms.client.messages.columns import carried_bytes, transaction_id
from spark_jms.client.messages.encoding import check_properties
from spark_jms.client.messages.message import ExceptionListener, Message
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import Balancing
from spark_jms.core.ordering.units_of_work import UNIT
from spark_jms.core.transactions.producers import (
    ONE_WAY_TRANSITIONS,
    TRANSITIONS,
    AlreadySentError,
    CountingEvent,
    CountingState,
    NumberedMessages,
    OneWayCase,
    OneWayEvent,
    OneWayRule,
    OneWayState,
    ProducerPosition,
    app_id_of,
    check_producer_id,
    fenced,
    two_way_reason,
)
from spark_jms.errors import (
    ClosedError,
    CommitOutcomeUnknownError,
    DestinationPausedError,
    InvalidDestinationError,
    OptionError,
    ProducerFencedError,
    SequenceGapError,
    ServerDownError,
    ServerLostError,
)
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import Sent, TransactionId, explained, send
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store.errors import ResourceAllocationException

log = logging.getLogger("spark_jms")
_DELETES = (ResourceAllocationException, DestinationPausedError, ServerDownError)


class ProducerNumbers:
    """The numbers of one open producer id, made for one producer. It opens the id: from then on, earlier openings are fenced.
    Thread-safe."""

    def __init__(self, log: DeltaLog, producer_id: str) -> None:
        """One commit. Raises OptionError, and what a commit raises."""
        self.producer_id = check_producer_id(producer_id)
        self._log, self._app_id = log, app_id_of(producer_id)
        self._lock = threading.Lock()
        self._state, self._reason = CountingState.COUNTING, ""
        opened = commit(log, lambda snapshot: self._as(self._in(snapshot).opened()))
        assert opened is not None
        self._epoch = self._in(log.snapshot).epoch

    @property
    def last(self) -> int:
        """As this process knows the table."""
        return self._in(self._log.snapshot).last

    def refreshed_last(self) -> int:
        self._log.refresh()
        return self.last

    def messages(self, count: int, first: int | None) -> NumberedMessages:
        """For a commit. Raises ProducerFencedError, and SequenceGapError when a message without a number has to wait until the
        application resumes."""
        if self._state is CountingState.FENCED:
            raise ProducerFencedError(self._reason)
        if self._state is CountingState.STOPPED and first is None:
            raise self.gap_behind(self._reason)
        return NumberedMessages(self.producer_id, self._epoch, count, first)

    def gap_behind(self, error: object) -> SequenceGapError:
        return SequenceGapError(
            f"{self._log.name}: producer id {self.producer_id}: a message before this one was not sent, or may not have been, so "
            "nothing was sent: call producer.resume(), which returns the last number in the table, and continue behind it; or give "
            f"each message its number. The error was: {error}"
        )

    def failed(self, error: BaseException, *, waits: bool) -> None:
        """A send has. `waits`: the application waits for its outcome, and learns of the error before it sends another message."""
        if isinstance(error, ProducerFencedError):
            self._on(CountingEvent.FENCED, error)
        elif isinstance(error, CommitOutcomeUnknownError) or not isinstance(error, Exception):
            self._on(CountingEvent.UNKNOWN, error)
        elif not waits:
            self._on(CountingEvent.FAILED, error)

    def resume(self) -> int:
        """Count on behind the last message in the table, and return its number. After an error this is one commit, after which no
        earlier attempt can arrive. Raises ProducerFencedError, and what a commit raises."""
        if self._state is CountingState.COUNTING:
            return self.refreshed_last()
        if self._state is CountingState.FENCED:
            raise ProducerFencedError(self._reason)
        try:
            commit(self._log, self._unchanged)
        except ProducerFencedError as error:
            self._on(CountingEvent.FENCED, error)
            raise
        self._on(CountingEvent.RESUMED, None)
        return self.last

    def _unchanged(self, snapshot: Snapshot) -> Decision:
        position = self._in(snapshot)
        if position.epoch != self._epoch:
            raise fenced(NumberedMessages(self.producer_id, self._epoch, 0), position, self._log.name)
        return self._as(position)

    def _on(self, event: CountingEvent, error: BaseException | None) -> None:
        with self._lock:
            before, self._state = self._state, TRANSITIONS[self._state, event]
            if self._state is not before:
                self._reason = "" if error is None else str(error) or type(error).__name__

    def _in(self, snapshot: Snapshot) -> ProducerPosition:
        return ProducerPosition.of(snapshot.transactions.get(self._app_id))

    def _as(self, position: ProducerPosition) -> Decision:
        action = TransactionId(self._app_id, position.version).action(now_ms())
        return Decision("WRITE", [action], {"mode": "Append"})


@dataclass(frozen=True)
class SendNumbers:
    """The numbers of the messages of one send. `first`: the number that the application gave the first of them; None: the commit
    numbers them. `waits`: the application waits for the outcome."""

    numbers: ProducerNumbers
    first: int | None
    waits: bool = True

    def of(self, count: int) -> NumberedMessages:
        return self.numbers.messages(count, self.first)

    def gap_behind(self, error: Exception) -> SequenceGapError | None:
        """For the messages behind these, which have failed with the error; None: they may be sent."""
        return None if self.waits or self.first is not None else self.numbers.gap_behind(error)

    def failed(self, error: BaseException) -> None:
        self.numbers.failed(error, waits=self.waits)


class Head:
    """Drops the first `rows` of some batches, and counts what it has dropped."""

    def __init__(self, rows: int) -> None:
        self.rows, self._left, self.dropped = rows, rows, 0

    def cut(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = min(self._left, batch.num_rows)
            self._left -= rows
            self.dropped += rows
            if rows < batch.num_rows:
                yield batch.slice(rows)


class WholeSent(NamedTuple):
    """What became of messages that were sent whole. `sent` None: nothing was, because the table has the numbers of all `rows`. `size`:
    the bytes of bodies and properties."""

    rows: int
    size: int
    sent: Sent | None


class WholeSend:
    """Sends of one producer that do not share their commit: each is one, all or nothing. Thread-safe. `turns` are the producer's, and
    `name` what its messages without a unit of order belong to; `numbers` None: it has no producer id."""

    def __init__(
        self,
        log: DeltaLog,
        balancing: Balancing,
        name: str,
        turns: Iterator[int],
        threshold: int | None,
        send_timeout_s: float,
        numbers: ProducerNumbers | None,
        unit: str | None = None,
    ) -> None:
        self.unit = unit  # the default unit of order of the connection factory
        self._log, self._balancing, self._name = log, balancing, name
        self.turns, self.threshold, self.send_timeout_s, self.numbers = turns, threshold, send_timeout_s, numbers

    def kept_balancing(self, declared: Destination) -> Balancing:
        """That of the producer, which keeps its member while that is there."""
        kept = self._balancing = self._balancing.keeping(declared)
        return kept

    def required_numbers(self) -> ProducerNumbers:
        """Raises OptionError without a producer id."""
        if self.numbers is None:
            raise OptionError(f"this producer of {self._log.name} has no id: create it with producer_id=…")
        return self.numbers

    def numbering(self, sequence: int | None, *, waits: bool = True) -> SendNumbers | None:
        return None if self.numbers is None else SendNumbers(self.numbers, sequence, waits)

    def sent_of(self, sequence: int | None) -> int:
        """How many messages from this number on are in the table."""
        return 0 if sequence is None else max(0, self.required_numbers().refreshed_last() - sequence + 1)

    def transaction(self, transaction: tuple[str, int], sequence: int | None) -> TransactionId:
        if self.numbers is not None or sequence is not None:
            raise OptionError(
                f"transaction is {transaction!r}, but this producer of {self._log.name} has an id, which recognises what is sent "
                "again: give sequence, or use a producer without an id"
            )
        return transaction_id(transaction)

    def commit(
        self, batches: Iterable[pa.RecordBatch], now: int, transaction: TransactionId | None, sequence: int | None
    ) -> WholeSent:
        numbering = self.numbering(sequence)
        numbered = [] if numbering is None else [numbering.of(0)]
        snapshot = self._log.refresh()  # it avoids members that are paused by now
        balancing = self.kept_balancing(snapshot.destination)
        writer = MessageWriter(
            self._log.storage,
            snapshot.destination,
            next(self.turns),
            now,
            routing=balancing.routing(snapshot.destination),
            producer=self._name,
            threshold=self.threshold,
            unit=self.unit,
        )
        size = 0
        try:
            for batch in batches:
                size += carried_bytes(writer.write(batch))
            staged = writer.close()
        except InvalidDestinationError as error:
            writer.abort()
            raise explained(self._log, error) from error
        except BaseException:
            writer.abort()
            raise
        rows = sum(file.rows for file in staged)
        try:
            sent = send(
                self._log,
                staged,
                snapshot.route_id,
                transaction,
                wait_s=self.send_timeout_s,
                balancing=balancing,
                numbered=[replace(messages, count=rows) for messages in numbered if rows],
            )
        except AlreadySentError:
            return WholeSent(rows, size, None)
        except BaseException as error:
            if numbering is not None:  # also of an interrupt (Ctrl-C)
                numbering.failed(error)
            raise
        return WholeSent(sum(file.rows for file in sent.files), size, sent)


class OneWaySends:
    """The one-way sends of one producer: which go, how many since the last that waited, and what became of them. A one-way send is an
    asynchronous send whose CompletionListener is this object. Thread-safe."""

    def __init__(self, rule: OneWayRule, exception_listener: ExceptionListener | None) -> None:
        self._rule, self._exception_listener = rule, exception_listener
        self._lock = threading.Lock()
        self._state = OneWayState.OPEN
        self._since = self._lost = 0  # one-way sends since the last two-way one, and those of them that were not sent
        self._failure: Exception | None = None
        self._untold = False
        self.sent = self.deleted = 0

    def takes(self, message: Message, destination: Destination) -> bool:
        """Whether this send is one-way. Then it counts towards the window. Raises MessageFormatError for bad properties."""
        check_properties(message.properties)
        unit = message.properties.get(UNIT)
        case = OneWayCase(self._rule, destination, message.delivery_mode, message.group_id, unit)
        with self._lock:
            if self._since + 1 >= self._rule.factory.one_way_send_window_size or self._state is not OneWayState.OPEN:
                return False
            if two_way_reason(case) is not None:
                return False
            self._since += 1
            return True

    def waited(self) -> None:
        """A two-way send has succeeded, and all before it are decided."""
        with self._lock:
            self._since = self._lost = 0
            self._state = ONE_WAY_TRANSITIONS[self._state, OneWayEvent.WAITED]

    def decided(self, error: Exception | None) -> None:
        """A one-way send is; None: the message is in the table. A two-way send that waited for it finds the failure."""
        deleted = isinstance(error, _DELETES) and not isinstance(error, ServerLostError)
        event = OneWayEvent.DELETED if deleted else OneWayEvent.FAILED
        with self._lock:
            if error is None:
                self.sent += 1
                return
            self.deleted += 1
            self._lost += 1
            before, self._state = self._state, ONE_WAY_TRANSITIONS[self._state, event]
            if self._state is OneWayState.CLOSED and before is not OneWayState.CLOSED:
                self._failure, self._untold = error, self._exception_listener is None

    def on_completion(self, message: Message, /) -> None:
        """`decided` has counted it."""

    def on_exception(self, message: Message, error: Exception, /) -> None:
        if error is self._failure:
            log.warning("%s: a one-way send failed, and its producer is closed", message.destination, exc_info=error)
            if self._exception_listener is not None:
                self._exception_listener(error)

    def reset_statistics(self) -> None:
        with self._lock:
            self.sent = self.deleted = 0

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raises ClosedError after a failure."""
        if self._failure is not None:
            self._untold = False
            raise ClosedError(
                f"this producer was closed because a one-way send failed, and {self._lost:,} one-way message(s) since its last "
                f"two-way send were not sent: create a new one. The error was: {self._failure}"
            ) from self._failure

    def raise_untold(self) -> None:
        """For `close`: a failure that neither an exception listener nor a send has told."""
        if self._untold:
            self.check()
