"""Transacted sessions: what one sends and receives is one transaction, to the next commit or rollback.

It may have any number of destinations. docs/TRANSACTIONS.md is their page.

The listeners of asynchronous sends are called when the transaction ends, by the context's thread of asynchronous sends; commit,
rollback and close return when they have.

A listener of messages may call `commit` and `rollback` of its session itself. With `transaction_batch` its thread does so: after
so many messages, or when none waits; and it rolls back when the listener raises.

Features: T11, T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from spark_jms.claims.records.subscriptions import Sharing
from spark_jms.client.messages.columns import CHUNK_MESSAGES, Item, carried_bytes, item_bytes
from spark_jms.client.messages.message import (
    Closable,
    ExceptionListener,
    Message,
    MessageArguments,
    MessageListener,
    OwningProcess,
)
from spark_jms.client.receiving.consumer import Consumer, GivenConsumer, MessageSource, StartingPosition, check_batch
from spark_jms.client.receiving.receiver import Receiver
from spark_jms.client.receiving.request import Replies
from spark_jms.client.sending.asynchronous_send import (
    AsynchronousSend,
    AsynchronousSender,
    CompletionListener,
    ProducerStatistics,
    SendReport,
)
from spark_jms.client.sending.producer import Producer
from spark_jms.client.sending.shared_send import OutgoingMessages, Part, SentPosition, by_newest, rows_of
from spark_jms.client.sending.tracing import SendSpan, watched
from spark_jms.client.transactions.transaction import SessionTransaction
from spark_jms.core.messages.columns import IN_ARROW, check_sendable, normalise
from spark_jms.core.messages.compression import compressed
from spark_jms.core.ordering.units_of_order import refuse_units, with_default_unit
from spark_jms.core.ordering.units_of_work import check_parts
from spark_jms.errors import (
    ClosedError,
    CommitOutcomeUnknownError,
    IllegalStateException,
    TransactionRolledBackException,
    TransactionUnfinishedError,
)
from spark_jms.log.messages.paging import MessageBuffer, PagedRows
from spark_jms.log.sending.send import TransactionId
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.types import DurationLike

if TYPE_CHECKING:
    from spark_jms.client.receiving.consumer import ListenerThread


class SessionCompletions:
    """The asynchronous sends of a session whose listeners wait for the end of its transaction. Their messages stay in memory until
    then. For one thread at a time."""

    def __init__(self, asynchronous: AsynchronousSender) -> None:
        self._asynchronous = asynchronous
        self._waiting: list[AsynchronousSend] = []
        self._used = False

    def add(self, send: AsynchronousSend) -> None:
        """Its outcome is that of a commit."""
        self._waiting.append(send)
        self._used = True

    def of(self, producer: str) -> int:
        """How many wait."""
        return sum(send.outgoing.producer == producer for send in self._waiting)

    def refuse_in_listener(self, call: str) -> None:
        """Raises IllegalStateException: `call` would wait for the listener that makes it."""
        if self._used:
            self._asynchronous.refuse_in_listener(f"TransactedSession.{call}")

    def end(self, error: Exception | None) -> None:
        """The transaction has. None: its messages are sent, or will be. Returns when the listeners have."""
        ended, self._waiting = self._waiting, []
        for send in ended:
            send.outcome = error or send.outcome
        if ended:
            self._asynchronous.tell(ended)


@dataclass(frozen=True)
class SendingSide:
    """What a producer needs of its session: `collect` takes rows without ids, and returns their message ids."""

    collect: Callable[[DeltaLog, pa.RecordBatch, OutgoingMessages], Sequence[str]]
    completions: SessionCompletions


class TransactedProducer(Producer):
    """Made by `TransactedSession.producer`; see `Producer`. `send` checks the message and gives it its id; member and sequence are
    given by the commit. With `completion` it returns None, and the listener is called when the session commits or rolls back. Sends
    are not one-way, and have no `transaction` of their own."""

    def __init__(self, side: SendingSide, buffer: MessageBuffer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collect, self._completions, self._buffer = side.collect, side.completions, buffer

    def send_many(
        self,
        messages: Iterable[Message | MessageArguments],
        *,
        chunk_messages: int = CHUNK_MESSAGES,
        transaction: tuple[str, int] | None = None,
        sequence: int | None = None,
    ) -> SendReport:
        """All of them belong to the transaction of the session. `commits` of the report is 0: none has been made yet."""
        _refuse(transaction)
        return super().send_many(messages, chunk_messages=chunk_messages, sequence=sequence)

    def _submit(
        self,
        message: Message,
        now: int,
        completion: CompletionListener,
        sequence: int | None,
        span: SendSpan | None,
        *,
        waits: bool = True,
    ) -> None:
        part = self._share([message], now, sequence)
        sent, listener = self._as_sent(message, part.positions()[0], now), watched(completion, span)

        def complete(outcome: Part | Exception) -> None:
            if isinstance(outcome, Exception):
                listener.on_exception(message, outcome)
            else:
                listener.on_completion(sent)

        outgoing = OutgoingMessages([message], 0, now, producer=self._name)
        send = AsynchronousSend(self._shared, outgoing, item_bytes(message), complete, lambda: None, outcome=part)
        self._completions.add(send)

    def statistics(self) -> ProducerStatistics:
        """As of any producer; `outstanding` counts the asynchronous sends whose transaction has not ended."""
        counted = super().statistics()
        return replace(counted, outstanding=counted.outstanding + self._completions.of(self._name))

    def _share(self, messages: Sequence[Item], now: int, sequence: int | None) -> Part:
        outgoing = self._outgoing(messages, now, None)
        rows = by_newest(self._log, lambda snapshot: rows_of([Part(outgoing)], snapshot.destination))
        collected = _CollectedPart(outgoing, self._collect(self._log, rows, outgoing))
        self._count(len(messages), 0, sum(map(item_bytes, messages)), 0)
        return collected

    def _send_chunk(self, chunk: Sequence[Item], sequence: int | None) -> SendReport:
        self._share(chunk, now_ms(), sequence)
        return SendReport(len(chunk), 0)

    def _send_whole(
        self, batches: Iterable[pa.RecordBatch], transaction: TransactionId | None, sequence: int | None = None
    ) -> SendReport:
        _refuse(transaction)
        declared, now = self._log.refresh().destination, now_ms()
        accepted, size = PagedRows(self._buffer), 0
        try:
            for batch in self._paced(batches):
                check_sendable(batch.schema, IN_ARROW)
                rows = normalise(batch, now, declared.max_message_bytes)
                if declared.handles_units_of_work:
                    check_parts(rows)
                if declared.forward_delay_ms is not None:
                    refuse_units(rows, declared.name)
                rows = with_default_unit(
                    compressed(rows, self._whole.threshold), declared.default_unit(self._name, self._whole.unit)
                )
                accepted.append(rows)
                size += carried_bytes(rows)
            count = accepted.count
            for rows in accepted:  # all of them, since each was accepted
                self._collect(self._log, rows, self._outgoing((), now, None))
        finally:
            accepted.clear()
        self._count(count, 0, size, 0)
        return SendReport(count, 0)


OpenProducer = Callable[[str, DurationLike | None, int | None, SendingSide], TransactedProducer]


class TransactedConsumer(Consumer):
    """Made by `TransactedSession.consumer`; see `Consumer`. `Message.acknowledge` does nothing: the session's commit acknowledges.
    When it is closed with messages that are not committed, they still belong to the transaction."""

    def __init__(
        self,
        defers: Callable[[TransactedConsumer], bool],
        receiver: Receiver,
        listener: ListenerThread | None,
        on_close: Callable[[Consumer], None],
    ) -> None:
        super().__init__(receiver, listener, on_close)
        self._defers = defers

    def recover(self) -> None:
        """Raises IllegalStateException: the session's `rollback` returns its messages."""
        raise IllegalStateException(
            f"consumer {self.name} of {self.destination} belongs to a transacted session: use the session's rollback()"
        )

    def close(self) -> None:
        """Raises the error that ended the listener, unless an exception listener got it."""
        self._end(orderly=True)

    def _end(self, *, orderly: bool) -> None:
        if self._process.is_parent:
            return
        self._receiver.stop()
        if self._listener is not None:
            self._listener.join()
        if not self._defers(self):
            self.close_now()

    def close_now(self) -> None:
        """Release what is not committed."""
        self._end_now(orderly=False)

    @property
    def uncommitted(self) -> bool:
        """The application has received messages since the last commit or rollback."""
        return bool(self._receiver.transacted.delivered())


@dataclass(frozen=True)
class SessionSide:
    """What a consumer needs of its session: `join` takes its receiver and gives the source of its listener; `reply` sends a reply
    when the session commits; `defers` whether a close waits for the end of the transaction."""

    join: Callable[[Receiver], MessageSource]
    reply: Callable[[Message, Mapping[str, Any]], Message]
    defers: Callable[[TransactedConsumer], bool]


OpenConsumer = Callable[[GivenConsumer, SessionSide], TransactedConsumer]


class TransactedSession(Closable):
    """Made by `Context.transacted_session`. For one thread at a time. Use it in a `with` statement: closing it rolls back what is
    not committed."""

    def __init__(
        self,
        transaction: SessionTransaction,
        open_producer: OpenProducer,
        open_consumer: OpenConsumer,
        asynchronous: AsynchronousSender,
        on_close: Callable[[TransactedSession], None],
    ) -> None:
        self._process = OwningProcess()
        self._transaction, self._on_close = transaction, on_close
        self._open_producer, self._open_consumer = open_producer, open_consumer
        self._completions = SessionCompletions(asynchronous)
        self._sending = SendingSide(transaction.collect, self._completions)
        self._replies = Replies(lambda name: open_producer(name, None, None, self._sending))
        self._producers: list[TransactedProducer] = []
        self._consumers: list[TransactedConsumer] = []
        self._listens = False
        self._closed = False

    def producer(
        self,
        destination: str,
        *,
        send_timeout: DurationLike | None = None,
        compression_threshold: int | None = None,
    ) -> TransactedProducer:
        """As `Context.producer`. `send_timeout` is how long the commit waits while insertion is paused or the quota has no room."""
        self._check()
        made = self._open_producer(destination, send_timeout, compression_threshold, self._sending)
        self._producers.append(made)
        return made

    def consumer(
        self,
        destination: str,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        durable: bool | None = None,
        sharing: Sharing = "sharable",
        starting_position: StartingPosition | None = None,
        prefetch: int | None = None,
        members: int | Iterable[int] | None = None,
        pin: bool | None = None,
        listener: MessageListener | None = None,
        exception_listener: ExceptionListener | None = None,
        transaction_batch: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> TransactedConsumer:
        """As `Context.consumer`. With `transaction_batch` the session commits after so many calls of the listener, or when no
        message waits, and rolls back when the listener raises; without it, the listener commits."""
        self._check()
        check_batch(transaction_batch, listener)
        if listener is not None and self._listens:
            raise IllegalStateException(
                "this session has a consumer with a listener, and a session is for one thread: open another session"
            )
        given = GivenConsumer(
            destination,
            selector,
            subscription,
            durable,
            sharing,
            starting_position,
            prefetch,
            members,
            pin,
            listener,
            exception_listener,
            fail_on_data_loss,
        )

        def join(receiver: Receiver) -> MessageSource:
            self._transaction.receivers.append(receiver)
            return _BatchSource(receiver, self, transaction_batch)

        made = self._open_consumer(given, SessionSide(join, self._replies.send, self._defers))
        self._consumers.append(made)
        self._listens = self._listens or listener is not None
        return made

    @property
    def connection(self) -> Any:
        """To the last resource, outside autocommit: what the application changes by it belongs to the transaction. The session
        commits it, rolls it back and closes it. Raises IllegalStateException when the session has none, and LastResourceError."""
        self._check()
        return self._transaction.connection()

    def commit(self) -> None:
        """Send what was sent and acknowledge what was received since the last commit or rollback: all or nothing, exactly once.

        Raises TransactionRolledBackException when it was rolled back, with the reason as its cause;
        TransactionUnfinishedError when it is decided and a destination cannot take its messages yet: do not repeat it, any process
        completes it; and CommitOutcomeUnknownError when the storage cannot tell. Returns, or raises, when the listeners of
        asynchronous sends have returned; in one of them it raises IllegalStateException."""
        self._check()
        self._completions.refuse_in_listener("commit")
        outcome: Exception | None = CommitOutcomeUnknownError("the commit of the session was interrupted")
        try:
            self._transaction.commit()
            outcome = None
        except TransactionUnfinishedError:  # it is committed
            outcome = None
            raise
        except (TransactionRolledBackException, CommitOutcomeUnknownError) as error:
            outcome = error
            raise
        finally:  # it has ended, in either way
            self._close_deferred()
            self._completions.end(outcome)

    def rollback(self) -> None:
        """Drop what was sent, and release what was received: it is delivered again, flagged and counted, after the destination's
        redelivery delay. Raises the error of a consumer that cannot release its messages now, for instance because their server is
        away: the transaction is rolled back all the same, and they come again when the server answers. Returns when the listeners of
        asynchronous sends have returned; in one of them it raises IllegalStateException."""
        self._check()
        self._completions.refuse_in_listener("rollback")
        try:
            self._transaction.roll_back()
        finally:
            self._close_deferred()
            self._completions.end(_rolled_back())

    def end_late(self) -> None:
        """A background thread calls this once a second."""
        self._transaction.end_late()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Roll back what is not committed, and close the producers and consumers. Returns when the listeners of asynchronous sends
        have returned; in one of them it raises IllegalStateException, and closes nothing."""
        if self._closed or self._process.is_parent:
            return
        self._completions.refuse_in_listener("close")
        self._closed = True
        try:
            for consumer in list(self._consumers):
                consumer.close()  # ends the listener
            for consumer in list(self._consumers):
                consumer.close_now()
            for producer in self._producers:
                producer.close()
        finally:
            self._transaction.close()
            self._completions.end(_rolled_back())
            self._on_close(self)

    # -- inside ---------------------------------------------------------------------------------------------------
    def _defers(self, consumer: TransactedConsumer) -> bool:
        """A closed consumer's messages belong to the transaction until it ends."""
        if consumer.uncommitted and not self._closed:
            return True
        self._remove(consumer)
        return False

    def _close_deferred(self) -> None:
        for consumer in [one for one in self._consumers if one.closed]:
            self._remove(consumer)
            consumer.close_now()

    def _remove(self, consumer: TransactedConsumer) -> None:
        if consumer in self._consumers:
            self._consumers.remove(consumer)
        self._transaction.leave(consumer.name)

    def _check(self) -> None:
        self._process.check()
        if self._closed:
            raise ClosedError("this session is closed: open a new one")

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._producers)} producer(s), {len(self._consumers)} consumer(s)"
        return f"<TransactedSession {state}>"


class _BatchSource:
    """The messages of a session's listener, in transactions of `batch` (None: the listener commits)."""

    def __init__(self, receiver: Receiver, session: TransactedSession, batch: int | None) -> None:
        self.destination, self.name = receiver.destination, receiver.name
        self._receiver, self._session, self._batch = receiver, session, batch
        self._done = 0  # since the last commit

    def next_message(self, timeout_s: float | None) -> Message | None:
        if self._batch is None:
            return self._receiver.next_message(timeout_s)
        if self._done >= self._batch:
            self._commit()
        message = self._receiver.next_message(0)
        if message is None and self._done:
            self._commit()
        return message if message is not None else self._receiver.next_message(timeout_s)

    def release(self, message: Message) -> None:
        """The listener raised."""
        self._done = 0
        self._session.rollback()

    def acknowledge_delivered(self) -> None:
        self._done += 1

    def _commit(self) -> None:
        self._done = 0
        self._session.commit()


class _CollectedPart(Part):
    """Its messages have ids, and no member and sequence yet."""

    def __init__(self, outgoing: OutgoingMessages, ids: Sequence[str]) -> None:
        super().__init__(outgoing)
        self._ids = ids

    def positions(self) -> list[SentPosition]:
        return [SentPosition(-1, 0, each) for each in self._ids]


def _rolled_back() -> TransactionRolledBackException:
    return TransactionRolledBackException("the session was rolled back, and with it this message: it was not sent")


def _refuse(transaction: object) -> None:
    if transaction is not None:
        raise IllegalStateException(
            "the messages belong to the transaction of the session: leave out `transaction`, or use a producer of the context"
        )
