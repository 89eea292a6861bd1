"""Sending without Spark: one message or many, each call or chunk in one commit (C2, C4, C11); asynchronously and one-way (T11)."""

from __future__ import annotations

import itertools
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, overload

import pyarrow as pa

from spark_jms.client.asynchronous_send import AsynchronousSend, AsynchronousSender
from spark_jms.client.columns import ArrowStream, Item, carried_bytes, item_bytes, slices, to_columns
from spark_jms.client.completion import CompletionListener, check_completion
from spark_jms.client.encoding import compose, to_batch
from spark_jms.client.flow import NOT_SLOWED, FlowStatistics, ProducerFlow
from spark_jms.client.message import MapValue, Message, MessageArguments, MessageHeaders, PropertyValue
from spark_jms.client.one_way import OneWaySends
from spark_jms.client.shared_send import OutgoingMessages, Part, SentPosition, SharedSender
from spark_jms.client.unit_of_work import as_unit
from spark_jms.core.balancing import ANY_MEMBER, Balancing
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.errors import (
    ClosedError,
    DuplicateTransactionError,
    InvalidDestinationError,
    JmsqError,
    MessageFormatError,
)
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.message_writer import MessageWriter
from spark_jms.log.send import Sent, TransactionId, explained, send
from spark_jms.log.storage import now_ms
from spark_jms.settings.duration import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 32 * 2**20
DEFAULT_SEND_TIMEOUT_S = 0.01
NOWHERE = SentPosition(-1, 0, "")  # of a message that is sent one-way
SHARED_MESSAGES = 100  # a chunk of at most so many shares its commit with what other threads send


@dataclass(frozen=True)
class ProducerStatistics:
    """Counts since the producer was created, or its statistics were reset. `bytes` counts bodies and properties; `commits`
    those that hold messages of this producer, and perhaps of others."""

    messages: int = 0
    commits: int = 0
    bytes: int = 0
    duplicates: int = 0  # calls of send_many whose transaction was in the log already
    outstanding: int = 0  # asynchronous and one-way sends that are not complete now
    one_way: int = 0  # one-way sends whose messages are in the table
    deleted: int = 0  # one-way sends whose messages are not, and will not be
    flow: FlowStatistics = NOT_SLOWED


@dataclass(frozen=True)
class SendReport:
    """The result of `send_many`. `duplicate`: the transaction was in the log already, and nothing was sent."""

    messages: int
    commits: int
    sequences: Mapping[int, Ranges] = field(default_factory=dict)
    duplicate: bool = False


class Producer:
    """Made by `Context.producer`. Thread-safe. When `send` returns, the message is in the table; when it raises, it is
    not, except for CommitOutcomeUnknownError. Sends of several threads share commits. Each member keeps the order of one
    producer's messages, and the whole destination keeps the order of one `group_id`. Messages of several
    threads have no order among them. With `completion`, `send` returns at once, and a thread of the context calls the listener
    when the message is sent (T11).

    Single messages go to the members in turn; `send_many` gives each member an equal consecutive share of a chunk.
    """

    def __init__(
        self,
        log: DeltaLog,
        shared: SharedSender,
        asynchronous: AsynchronousSender,
        check: Callable[[], None],
        sent: Callable[[DeltaLog, int], None],
        closed: Callable[[Producer], None],
        send_timeout_s: float = DEFAULT_SEND_TIMEOUT_S,
        balancing: Balancing = ANY_MEMBER,
        one_way: OneWaySends | None = None,
        flow: ProducerFlow | None = None,
        threshold: int | None = None,
    ) -> None:
        """`flow` None: nothing slows it down. `threshold`: from so many bytes on a body is compressed; None: never."""
        self._threshold = threshold
        self.destination, self._balancing, self._flow = log.name, balancing, flow
        self._log, self._shared, self._asynchronous = log, shared, asynchronous
        self._check_context, self._sent, self._on_close = check, sent, closed
        self._send_timeout_s, self._one_way = send_timeout_s, one_way
        self._name = uuid.uuid4().hex
        self._turns = itertools.count(random.randrange(2**31))
        self._lock = threading.Lock()
        self._statistics = ProducerStatistics()
        self._completed_version = -1  # the newest one with asynchronous sends of ours, which commits are counted by
        self._closed = False

    # -- sending --------------------------------------------------------------------------------------------------
    @overload
    def send(self, template: Message, /, *, completion: CompletionListener) -> None: ...
    @overload
    def send(self, *, completion: CompletionListener, **arguments: Unpack[MessageArguments]) -> None: ...
    @overload
    def send(self, template: Message, /) -> Message: ...
    @overload
    def send(self, *, text: str | None, **headers: Unpack[MessageHeaders]) -> Message: ...
    @overload
    def send(self, *, body: bytes | bytearray | None, **headers: Unpack[MessageHeaders]) -> Message: ...
    @overload
    def send(self, *, map: Mapping[str, MapValue] | None, **headers: Unpack[MessageHeaders]) -> Message: ...
    @overload
    def send(self, **headers: Unpack[MessageHeaders]) -> Message: ...

    # mypy cannot compare these parameters with the keys of MessageHeaders: a test does.
    def send(  # type: ignore[misc]
        self,
        template: Message | None = None,
        /,
        *,
        completion: CompletionListener | None = None,
        text: str | None = None,
        body: bytes | bytearray | None = None,
        map: Mapping[str, MapValue] | None = None,
        properties: Mapping[str, PropertyValue] | None = None,
        group_id: str | None = None,
        group_seq: int | None = None,
        priority: int | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        type: str | None = None,
        time_to_live: DurationLike | None = None,
        expiration: datetime | None = None,
        delay: DurationLike | None = None,
        delivery_time: datetime | None = None,
        delivery_mode: Literal["PERSISTENT", "NON_PERSISTENT", 1, 2] | None = None,
        **unknown: object,
    ) -> Message | None:
        """Send one message and return it as sent, with its id, member and sequence.

        Give one of `text`, `body` and `map`, or none; or a Message as a template, which `dataclasses.replace` changes.
        `group_id` is the unit of order, `priority` 0 to 9. `time_to_live` and `delay` are durations ('10 s', a timedelta
        or seconds), `expiration` and `delivery_time` the same as points of time. Raises MessageFormatError or
        MessageSizeError before anything is written, and ProductionPausedError or, after the send time-out,
        InsertionPausedError while an administrator has paused the destination.

        With `completion`, this is JMS's asynchronous send (T11). It returns None once the message is queued, and waits only while
        5,000 messages or 32 MiB of this context are not complete, and for flow control. One thread of the context calls
        `completion.on_completion(message)` with the message as sent, or `completion.on_exception(message, error)`, for one
        message after the other in the order of this producer's sends. Errors of the arguments are raised here.

        Where the connection factory allows one-way sends, a non-persistent send may return before its message is in the table; the
        message returned then has no id, member and sequence.
        """
        arguments: dict[str, object] = {
            "text": text,
            "body": body,
            "map": map,
            "properties": properties,
            "group_id": group_id,
            "group_seq": group_seq,
            "priority": priority,
            "correlation_id": correlation_id,
            "reply_to": reply_to,
            "type": type,
            "time_to_live": time_to_live,
            "expiration": expiration,
            "delay": delay,
            "delivery_time": delivery_time,
            "delivery_mode": delivery_mode,
            **unknown,
        }
        return self._send_composed(template, arguments, completion)

    def _send_composed(
        self, template: Message | None, arguments: Mapping[str, object], completion: CompletionListener | None
    ) -> Message | None:
        self._check()
        has_waited = getattr(completion, "has_waited", False)
        if not has_waited:
            self._keep_pace(1)
        now = now_ms()
        if template is None:
            message = compose(now, arguments)
        elif any(value is not None for value in arguments.values()):
            raise MessageFormatError("give a Message or arguments, not both: dataclasses.replace changes a Message")
        else:
            message = _template(template)
        if completion is not None:
            check_completion(completion)
            self._submit(message, now, completion, waits=not has_waited)
            return None
        if self._one_way is not None and self._one_way.takes(message, self._log.snapshot.destination):
            self._submit(message, now, self._one_way)
            return self._as_sent(message, NOWHERE, now)
        return self._as_sent(message, self._share([message], now)[0], now)

    def _submit(self, message: Message, now: int, completion: CompletionListener, *, waits: bool = True) -> None:
        size = item_bytes(message)
        done = partial(self._complete, completion, message, size)
        outgoing = self._outgoing([message], now)
        self._asynchronous.submit(AsynchronousSend(self._shared, outgoing, size, done, self._check, waits))

    def send_many(
        self,
        messages: Iterable[Message | MessageArguments],
        *,
        chunk_messages: int = CHUNK_MESSAGES,
        transaction: tuple[str, int] | None = None,
    ) -> SendReport:
        """Send Messages, or dicts with the arguments of `send`, in chunks. Each chunk is one commit: all or nothing.

        A chunk has `chunk_messages` messages, or fewer when their bodies and properties reach 32 MiB. When a chunk fails, the chunks
        before it are sent, and the error says how many messages they held. With `transaction=(application id, version)`
        the whole call is one commit, and repeating it sends nothing: nor does any version that is not above the last
        one of that application id.
        """
        self._check()
        if chunk_messages < 1:
            raise MessageFormatError(f"chunk_messages is {chunk_messages}, but must be 1 or more")
        chunks = _chunks(messages, chunk_messages)
        if transaction is not None:
            return self._send_whole(map(_columns, chunks), _transaction(transaction))
        total = SendReport(0, 0)
        try:
            for chunk in chunks:
                self._keep_pace(len(chunk))
                sent_to = self._send_chunk(chunk)
                sequences = {m: total.sequences.get(m, EMPTY) | r for m, r in sent_to.items()}
                total = SendReport(total.messages + len(chunk), total.commits + 1, {**total.sequences, **sequences})
        except JmsqError as error:
            if not total.messages:
                raise
            raise type(error)(f"{error} (the {total.messages} messages of earlier chunks are sent)") from error
        return total

    def send_unit_of_work(self, messages: Iterable[Message | MessageArguments], name: str | None = None) -> SendReport:
        """Send Messages, or dicts with the arguments of `send`, as one unit of work, in one commit (T12): a destination with
        `unitOfWorkHandlingPolicy: SingleMessageDelivery` delivers them as one message, in this order. `name` is that of the
        unit, and is used for no other unit; None makes one. Several senders can contribute to a unit, with `send` and the
        properties JMS_BEA_UnitOfWork….
        """
        self._check()
        return self._send_whole([to_batch(as_unit(messages, name, now_ms()))], None)

    def send_table(
        self, table: pa.RecordBatch | ArrowStream, *, transaction: tuple[str, int] | None = None
    ) -> SendReport:
        """Send the rows of an Arrow table, record batch or record batch reader, or of any object that exports an Arrow
        stream, as messages: the fastest way. The columns are those of a message (docs/MESSAGES.md): `text` or `body`, and
        any of the others; `properties` is a map or a struct.

        The whole table is one commit: all or nothing. `transaction` is that of `send_many`. Raises MessageFormatError or
        MessageSizeError; then nothing is sent.
        """
        self._check()
        return self._send_whole(slices(table), _transaction(transaction) if transaction is not None else None)

    def _send_whole(self, batches: Iterable[pa.RecordBatch], transaction: TransactionId | None) -> SendReport:
        self._keep_pace(0)
        sent = self._commit(batches, now_ms(), transaction)
        duplicate, rows = transaction is not None and sent.version < 0, sum(f.rows for f in sent.files)
        if self._flow is not None and not duplicate:
            self._flow.sent(rows)
        return SendReport(rows, int(sent.version >= 0), sent.sequences, duplicate)

    def _send_chunk(self, chunk: Sequence[Item]) -> Mapping[int, Ranges]:
        if len(chunk) > SHARED_MESSAGES:  # large enough for a commit of its own; and threads convert in parallel
            return self._commit([_columns(chunk)], now_ms(), None).sequences
        positions = self._share(chunk, now_ms())
        members = {position.member for position in positions}
        return {m: Ranges.from_numbers([p.sequence for p in positions if p.member == m]) for m in members}

    def _outgoing(self, messages: Sequence[Item], now: int) -> OutgoingMessages:
        self._balancing = self._balancing.keeping(self._log.snapshot.destination)
        turn = next(self._turns)
        return OutgoingMessages(messages, turn, now, self._send_timeout_s, self._balancing, self._name, self._threshold)

    def _share(self, messages: Sequence[Item], now: int) -> list[SentPosition]:
        self._asynchronous.wait_until_sent(self._name)
        part = self._shared.send(self._outgoing(messages, now))
        self._count(len(messages), 1, sum(map(item_bytes, messages)), 0)
        if part.first == 0:  # one of the senders
            self._sent(self._log, part.version)
        self._waited()
        return part.positions()

    def _complete(self, listener: CompletionListener, message: Message, size: int, outcome: Part | Exception) -> None:
        """In the thread of the asynchronous sends."""
        if isinstance(outcome, Exception):
            listener.on_exception(message, outcome)
            return
        new, self._completed_version = outcome.version != self._completed_version, outcome.version
        self._count(1, int(new), size, 0)
        if new:
            self._sent(self._log, outcome.version)
        listener.on_completion(self._as_sent(message, outcome.positions()[0], outcome.now_ms))

    def _as_sent(self, message: Message, position: SentPosition, now: int) -> Message:
        return replace(
            message,
            group_id=message.group_id or self._log.snapshot.destination.default_unit(self._name),
            message_id=position.message_id,
            timestamp_ms=now,
            delivery_time_ms=message.delivery_time_ms or now,
            destination=self.destination,
            redelivered=False,
            delivery_count=0,
            member=position.member,
            sequence=position.sequence,
            _receipt=None,
        )

    def _keep_pace(self, messages: int) -> None:
        """Wait while flow control keeps the next messages back (T5)."""
        if self._flow is not None:
            self._flow.wait(messages)

    def _commit(self, batches: Iterable[pa.RecordBatch], now: int, transaction: TransactionId | None) -> Sent:
        self._asynchronous.wait_until_sent(self._name)
        snapshot = self._log.refresh()  # it avoids members that are paused by now
        self._balancing = self._balancing.keeping(snapshot.destination)
        routing = self._balancing.routing(snapshot.destination)
        writer = MessageWriter(
            self._log.storage,
            snapshot.destination,
            next(self._turns),
            now,
            routing=routing,
            producer=self._name,
            threshold=self._threshold,
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
        sent = send(
            self._log,
            staged,
            snapshot.route_id,
            transaction,
            wait_s=self._send_timeout_s,
            balancing=self._balancing,
        )
        done = sent.version >= 0
        if not done and transaction is None:  # no rows
            return sent
        self._count(sum(f.rows for f in sent.files), int(done), done * size, int(not done))
        if done:
            self._sent(self._log, sent.version)
        self._waited()
        return sent

    def _waited(self) -> None:
        if self._one_way is not None:
            self._one_way.waited()

    def _count(self, messages: int, commits: int, size: int, duplicates: int) -> None:
        with self._lock:
            s = self._statistics
            self._statistics = ProducerStatistics(
                s.messages + messages, s.commits + commits, s.bytes + size, s.duplicates + duplicates
            )

    # -- the end --------------------------------------------------------------------------------------------------
    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"this producer of {self.destination} is closed: create a new one")
        if self._one_way is not None:
            self._one_way.check()
        self._check_context()

    def statistics(self) -> ProducerStatistics:
        flow = NOT_SLOWED if self._flow is None else self._flow.statistics()
        now = replace(self._statistics, outstanding=self._asynchronous.outstanding(self._name), flow=flow)
        return now if self._one_way is None else replace(now, one_way=self._one_way.sent, deleted=self._one_way.deleted)

    def reset_statistics(self) -> None:
        """Count from 0 again (T17)."""
        with self._lock:
            self._statistics = ProducerStatistics()
        if self._one_way is not None:
            self._one_way.reset_statistics()

    @property
    def closed(self) -> bool:
        return self._closed or (self._one_way is not None and self._one_way.failed)

    def close(self) -> None:
        """Returns once its asynchronous and one-way sends are complete. Raises IllegalStateException in a completion listener, and
        closes nothing; ClosedError when a one-way send has failed and no exception listener or send has told it."""
        self._asynchronous.refuse_in_listener("Producer.close")
        self._closed = True
        if self._flow is not None:
            self._flow.close()
        self._asynchronous.wait_until_complete(self._name)
        self._on_close(self)
        if self._one_way is not None:
            self._one_way.raise_untold()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        sent = self._statistics
        return (
            f"<Producer of {self.destination}: {'closed, ' if self._closed else ''}{sent.messages:,} messages in "
            f"{sent.commits:,} commits>"
        )


def flow_of(producer: Producer) -> ProducerFlow | None:
    """For a caller that waits for the pace itself; None: nothing slows the producer down."""
    return producer._flow


def _template(message: object) -> Message:
    if isinstance(message, Message):
        return message
    if isinstance(message, str):
        raise MessageFormatError("send takes the text of a message by name: send(text=…)")
    if isinstance(message, Mapping):
        raise MessageFormatError("send takes the arguments of a dict by name: send(**…); send_many takes dicts")
    raise MessageFormatError(
        f"send was given an object of type {type(message).__name__}: give a Message, or arguments by name"
    )


def _chunks(messages: Iterable[Item], limit: int) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for number, item in enumerate(messages):
        if not isinstance(item, Message | Mapping):
            raise MessageFormatError(
                f"item {number} of send_many is a {type(item).__name__}, but must be a Message or a dict of send's "
                "arguments, such as {'text': …}"
            )
        chunk.append(item)
        size += item_bytes(item)
        if len(chunk) >= limit or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _columns(chunk: Sequence[Item]) -> pa.RecordBatch:
    return to_columns(chunk, [now_ms()] * len(chunk))


def _transaction(transaction: tuple[str, int]) -> TransactionId:
    match transaction:
        case (str(app_id), int(version)) if app_id and not isinstance(version, bool) and 0 <= version < 2**63:
            return TransactionId(f"app/{app_id}", version)
    raise DuplicateTransactionError(
        f"transaction is {transaction!r}, but must be (application id, version): text and a whole number from 0 on"
    )
