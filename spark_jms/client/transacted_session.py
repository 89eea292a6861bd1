"""Transacted sessions: what their producers send and their consumers receive is one transaction, to the next commit or rollback,
over any number of destinations. docs/TRANSACTIONS.md is their page.

A listener may call `commit` and `rollback` of its session itself. With `transaction_batch` its thread does so: after so many
messages, or when none waits; and it rolls back when the listener raises.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jms.claims.subscription_request import Sharing
from spark_jms.client.closing import ClosedAtTheEnd, OwningProcess
from spark_jms.client.consumer import Consumer
from spark_jms.client.consumer_arguments import GivenConsumer, StartingPosition, check_batch
from spark_jms.client.listener import ExceptionListener, MessageListener, MessageSource
from spark_jms.client.message import Message
from spark_jms.client.receiver import Receiver
from spark_jms.client.reply import Replies
from spark_jms.client.session_transaction import SessionTransaction
from spark_jms.client.transacted_producer import Collect, TransactedProducer
from spark_jms.errors import ClosedError, IllegalStateException
from spark_jms.settings.duration import DurationLike

if TYPE_CHECKING:
    from spark_jms.client.listener import ListenerThread

OpenProducer = Callable[[str, DurationLike | None, int | None, Collect], TransactedProducer]


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


class TransactedSession(ClosedAtTheEnd):
    """Made by `Context.transacted_session`. For one thread at a time. Use it in a `with` statement: closing it rolls back what is
    not committed."""

    def __init__(
        self,
        transaction: SessionTransaction,
        open_producer: OpenProducer,
        open_consumer: OpenConsumer,
        on_close: Callable[[TransactedSession], None],
    ) -> None:
        self._process = OwningProcess()
        self._transaction, self._on_close = transaction, on_close
        self._open_producer, self._open_consumer = open_producer, open_consumer
        self._replies = Replies(lambda name: open_producer(name, None, None, transaction.collect))
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
        made = self._open_producer(destination, send_timeout, compression_threshold, self._transaction.collect)
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
        completes it; and CommitOutcomeUnknownError when the storage cannot tell."""
        self._check()
        try:
            self._transaction.commit()
        finally:  # it has ended, in either way
            self._close_deferred()

    def rollback(self) -> None:
        """Drop what was sent, and release what was received: it is delivered again, flagged and counted, after the destination's
        redelivery delay. Raises the error of a consumer that cannot release its messages now, for instance because their server is
        away: the transaction is rolled back all the same, and they come again when the server answers."""
        self._check()
        try:
            self._transaction.roll_back()
        finally:
            self._close_deferred()

    def end_late(self) -> None:
        """A background thread calls this once a second."""
        self._transaction.end_late()

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Roll back what is not committed, and close the producers and consumers."""
        if self._closed or self._process.is_parent:
            return
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
