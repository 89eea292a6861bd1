"""Sending without Spark: one message or many, each call or chunk in one commit; asynchronously and one-way.

Features: C2, C4, C11, T5, T11, T12, T17, M1 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Literal, overload

import pyarrow as pa

from spark_jms.client.messages.columns import (
    CHUNK_MESSAGES,
    ArrowStream,
    Item,
    as_unit,
    checked_template,
    chunk_columns,
    chunks_of,
    item_bytes,
    slices,
)
from spark_jms.client.messages.encoding import compose, to_batch
from spark_jms.client.messages.message import (
    Closable,
    MapValue,
    Message,
    MessageArguments,
    MessageHeaders,
    OwningProcess,
    PropertyValue,
)
from spark_jms.client.sending.asynchronous_send import (
    AsynchronousSend,
    AsynchronousSender,
    CompletionListener,
    ProducerStatistics,
    SendReport,
    check_completion,
)
from spark_jms.client.sending.flow_control import NOT_SLOWED, ProducerFlow
from spark_jms.client.sending.producers import Head, OneWaySends, ProducerNumbers, SendNumbers, WholeSend
from spark_jms.client.sending.shared_send import OutgoingMessages, Part, SentPosition, SharedSender
from spark_jms.client.sending.tracing import SendSpan, begun_send, failing, traced_sends, watched
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.producers import check_sequence
from spark_jms.errors import ClosedError, JmsqError, MessageFormatError
from spark_jms.log.messages.data_files import patience_ms
from spark_jms.log.sending.send import TransactionId
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.types import DurationLike

if TYPE_CHECKING:
    from typing_extensions import Unpack

NOWHERE = SentPosition(-1, 0, "")  # of a message that is sent one-way, or was in the table already by its number
SHARED_MESSAGES = 100  # a chunk of at most so many shares its commit with what other threads send


class Producer(Closable):
    """Made by `Context.producer`. Thread-safe. When `send` returns, the message is in the table; when it raises, it is
    not, except for CommitOutcomeUnknownError. Sends of several threads share commits. Each member keeps the order of one
    producer's messages, and the whole destination keeps the order of one `group_id`. Messages of several
    threads have no order among them. With `completion`, `send` returns at once, and a thread of the context calls the listener
    when the message is sent.

    Single messages go to the members in turn; `send_many` gives each member an equal consecutive share of a chunk.

    A producer with an id counts its messages in the table: 1, 2, 3 …. With `sequence`, the application gives the number itself: a
    number that the table has is not sent again. Numbers have no gaps (SequenceGapError), and opening an id fences the producers
    that opened it before (ProducerFencedError).
    """

    def __init__(
        self,
        log: DeltaLog,
        shared: SharedSender,
        asynchronous: AsynchronousSender,
        check: Callable[[], None],
        sent: Callable[[DeltaLog, int], None],
        closed: Callable[[Producer], None],
        send_timeout_s: float,
        balancing: Balancing = ANY_MEMBER,
        one_way: OneWaySends | None = None,
        flow: ProducerFlow | None = None,
        threshold: int | None = None,
        numbers: ProducerNumbers | None = None,
        unit: str | None = None,
    ) -> None:
        """`flow` None: nothing slows it down. `threshold`: from so many bytes on a body is compressed; None: never. `numbers` None:
        it has no producer id. `unit`: the default unit of order of its connection factory."""
        self._process = OwningProcess()
        self.destination, self._name = log.name, uuid.uuid4().hex
        self._log, self._shared, self._asynchronous = log, shared, asynchronous
        self._check_context, self._sent, self._on_close = check, sent, closed
        self._flow, self._one_way = flow, one_way
        turns = itertools.count(random.randrange(2**31))
        self._whole = WholeSend(log, balancing, self._name, turns, threshold, send_timeout_s, numbers, unit)
        self._lock = threading.Lock()
        self._statistics = ProducerStatistics()
        self._completed_version = -1  # the newest one with asynchronous sends of ours, which commits are counted by
        self._closed = False

    # -- sending --------------------------------------------------------------------------------------------------
    @overload
    def send(self, template: Message, /, *, completion: CompletionListener, sequence: int | None = None) -> None: ...
    @overload
    def send(
        self, *, completion: CompletionListener, sequence: int | None = None, **arguments: Unpack[MessageArguments]
    ) -> None: ...
    @overload
    def send(self, template: Message, /, *, sequence: int | None = None) -> Message: ...
    @overload
    def send(self, *, text: str | None, sequence: int | None = None, **headers: Unpack[MessageHeaders]) -> Message: ...
    @overload
    def send(
        self, *, body: bytes | bytearray | None, sequence: int | None = None, **headers: Unpack[MessageHeaders]
    ) -> Message: ...
    @overload
    def send(
        self, *, map: Mapping[str, MapValue] | None, sequence: int | None = None, **headers: Unpack[MessageHeaders]
    ) -> Message: ...
    @overload
    def send(self, *, sequence: int | None = None, **headers: Unpack[MessageHeaders]) -> Message: ...

    # mypy cannot compare these parameters with the keys of MessageHeaders: a test does.
    def send(  # type: ignore[misc]
        self,
        template: Message | None = None,
        /,
        *,
        completion: CompletionListener | None = None,
        sequence: int | None = None,
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

        `sequence` is the number of the message in its producer id. If the table has it, nothing is sent, the message returned has
        no id, and `statistics().duplicates` counts it. Raises SequenceGapError and ProducerFencedError.

        With `completion`, this is JMS's asynchronous send. It returns None once the message is queued, and waits only while
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
        return self._send_composed(template, arguments, completion, sequence)

    def _send_composed(
        self,
        template: Message | None,
        arguments: Mapping[str, object],
        completion: CompletionListener | None,
        sequence: int | None,
    ) -> Message | None:
        self._check()
        self._check_sequence(sequence)
        has_waited = getattr(completion, "has_waited", False)
        if not has_waited:
            self._keep_pace(1)
        now = now_ms()
        if template is None:
            message = compose(now, arguments)
        elif any(value is not None for value in arguments.values()):
            raise MessageFormatError("give a Message or arguments, not both: dataclasses.replace changes a Message")
        else:
            message = checked_template(template)
        if completion is not None:
            check_completion(completion)
        message, span = begun_send(self.destination, message)
        with failing(span):
            if completion is not None:
                self._submit(message, now, completion, sequence, span, waits=not has_waited)
                return None
            if self._one_way is not None and self._one_way.takes(message, self._log.snapshot.destination):
                self._submit(message, now, self._one_way, None, span)
                return self._as_sent(message, NOWHERE, now)
            part = self._share([message], now, sequence)
        sent = self._as_sent(message, NOWHERE if part.duplicate else part.positions()[0], now)
        if span is not None:
            span.sent_one(sent)
        return sent

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
        size = item_bytes(message)
        done = partial(self._complete, watched(completion, span), message, size)
        outgoing = self._outgoing([message], now, self._whole.numbering(sequence, waits=False))
        decided = completion.decided if isinstance(completion, OneWaySends) else None
        self._asynchronous.submit(AsynchronousSend(self._shared, outgoing, size, done, self._check, waits, decided))

    def send_many(
        self,
        messages: Iterable[Message | MessageArguments],
        *,
        chunk_messages: int = CHUNK_MESSAGES,
        transaction: tuple[str, int] | None = None,
        sequence: int | None = None,
    ) -> SendReport:
        """Send Messages, or dicts with the arguments of `send`, in chunks. Each chunk is one commit: all or nothing.

        A chunk has `chunk_messages` messages, or fewer when their bodies and properties reach 32 MiB, and while flow control
        limits the producer, no more than the limit allows in a second. When a chunk
        fails, the chunks before it are sent, and the error says how many messages they held. With
        `transaction=(application id, version)` the whole call is one commit, and repeating it sends nothing; neither
        does a version that is not above the last one of that application id. With `sequence`, the number of the first
        message in the producer id, those that the table has are not sent again.
        """
        self._check()
        if chunk_messages < 1:
            raise MessageFormatError(f"chunk_messages is {chunk_messages}, but must be 1 or more")
        send = partial(self._send_many, chunk_messages=chunk_messages, transaction=transaction, sequence=sequence)
        return traced_sends(self.destination, messages, SendSpan.stamp_each, send)

    def _send_many(
        self,
        messages: Iterable[Item],
        *,
        chunk_messages: int,
        transaction: tuple[str, int] | None,
        sequence: int | None,
    ) -> SendReport:
        if transaction is not None:
            chunks = chunks_of(messages, chunk_messages)
            return self._send_whole(map(chunk_columns, chunks), self._whole.transaction(transaction, sequence))
        self._check_sequence(sequence)
        rest = iter(messages)
        skipped = sum(1 for _ in itertools.islice(rest, self._whole.sent_of(sequence)))
        if skipped:
            self._count(0, 0, 0, skipped)
        total, number = SendReport(0, 0, duplicates=skipped), None if sequence is None else sequence + skipped
        try:
            for chunk in self._paced_parts(chunks_of(rest, chunk_messages, skipped)):
                total = total.with_next(self._send_chunk(chunk, number))
                number = None if number is None else number + len(chunk)
        except JmsqError as error:
            if not total.messages:
                raise
            raise type(error)(f"{error} (the {total.messages} messages of earlier chunks are sent)") from error
        return total

    def send_unit_of_work(
        self, messages: Iterable[Message | MessageArguments], name: str | None = None, *, sequence: int | None = None
    ) -> SendReport:
        """Send Messages, or dicts with the arguments of `send`, as one unit of work, in one commit: a destination with
        `unitOfWorkHandlingPolicy: SingleMessageDelivery` delivers them as one message, in this order. `name` is the
        name of the unit, which no other unit may have; None creates one. Several senders can contribute to a unit, with
        `send` and the properties JMS_BEA_UnitOfWork…. `sequence` is the number of the first message in the producer id.
        """
        self._check()
        self._check_sequence(sequence)

        def send(messages: Iterable[Item]) -> SendReport:
            return self._send_whole([to_batch(as_unit(messages, name, now_ms()))], None, sequence)

        return traced_sends(self.destination, messages, SendSpan.stamp_each, send)

    def send_table(
        self,
        table: pa.RecordBatch | ArrowStream,
        *,
        transaction: tuple[str, int] | None = None,
        sequence: int | None = None,
    ) -> SendReport:
        """Send the rows of an Arrow table, record batch or record batch reader, or of any object that exports an Arrow
        stream, as messages: the fastest way. The columns are those of a message (docs/MESSAGES.md): `text` or `body`, and
        any of the others; `properties` is a map or a struct.

        The whole table is one commit: all or nothing. `transaction` and `sequence` are those of `send_many`. Raises
        MessageFormatError or MessageSizeError; then nothing is sent.
        """
        self._check()
        send = partial(self._send_table, transaction=transaction, sequence=sequence)
        return traced_sends(self.destination, slices(table), SendSpan.stamp_columns, send)

    def _send_table(
        self, batches: Iterable[pa.RecordBatch], *, transaction: tuple[str, int] | None, sequence: int | None
    ) -> SendReport:
        if transaction is not None:
            return self._send_whole(batches, self._whole.transaction(transaction, sequence))
        self._check_sequence(sequence)
        head = Head(self._whole.sent_of(sequence))
        number = None if sequence is None else sequence + head.rows
        report = self._send_whole(head.cut(batches), None, number)
        if head.dropped:
            self._count(0, 0, 0, head.dropped)
        return replace(report, duplicates=report.duplicates + head.dropped)

    def _send_whole(
        self, batches: Iterable[pa.RecordBatch], transaction: TransactionId | None, sequence: int | None = None
    ) -> SendReport:
        if transaction is None or not transaction.is_in(self._log.refresh()):
            files_stay_s = patience_ms((), self._log.snapshot.destination, 0) / 2000  # half of it is for other waits
            batches = self._paced(batches, files_stay_s)
        return self._commit(batches, now_ms(), transaction, sequence)

    def _send_chunk(self, chunk: Sequence[Item], sequence: int | None) -> SendReport:
        if len(chunk) > SHARED_MESSAGES:  # large enough for a commit of its own; and threads convert in parallel
            return self._commit([chunk_columns(chunk)], now_ms(), None, sequence)
        part = self._share(chunk, now_ms(), sequence)
        if part.duplicate:
            return SendReport(0, 0, duplicates=len(chunk))
        positions = part.positions()
        members = {position.member for position in positions}
        sequences = {m: Ranges.from_numbers([p.sequence for p in positions if p.member == m]) for m in members}
        return SendReport(len(chunk), 1, sequences)

    def _outgoing(self, messages: Sequence[Item], now: int, numbering: SendNumbers | None) -> OutgoingMessages:
        whole = self._whole
        balancing = whole.kept_balancing(self._log.snapshot.destination)
        turn, wait_s = next(whole.turns), whole.send_timeout_s
        return OutgoingMessages(
            messages, turn, now, wait_s, balancing, self._name, whole.threshold, numbering, whole.unit
        )

    def _share(self, messages: Sequence[Item], now: int, sequence: int | None) -> Part:
        self._wait_for_own_sends()
        numbering = self._whole.numbering(sequence)
        try:
            part = self._shared.send(self._outgoing(messages, now, numbering))
        except BaseException as error:
            if numbering is not None:  # also of an interrupt (Ctrl-C)
                numbering.failed(error)
            raise
        if part.duplicate:
            self._count(0, 0, 0, len(messages))
            return part
        self._count(len(messages), 1, sum(map(item_bytes, messages)), 0)
        if part.first == 0:  # one of the senders
            self._sent(self._log, part.version)
        self._waited()
        return part

    def _complete(self, listener: CompletionListener, message: Message, size: int, outcome: Part | Exception) -> None:
        """In the thread of the asynchronous sends."""
        if isinstance(outcome, Exception):
            listener.on_exception(message, outcome)
            return
        if outcome.duplicate:
            self._count(0, 0, 0, 1)
            listener.on_completion(self._as_sent(message, NOWHERE, outcome.now_ms))
            return
        new, self._completed_version = outcome.version != self._completed_version, outcome.version
        self._count(1, int(new), size, 0)
        try:
            listener.on_completion(self._as_sent(message, outcome.positions()[0], outcome.now_ms))
        finally:  # after the listener, which an error of this must not keep from its message
            if new:
                self._sent(self._log, outcome.version)

    def _as_sent(self, message: Message, position: SentPosition, now: int) -> Message:
        return replace(
            message,
            group_id=message.group_id or self._log.snapshot.destination.default_unit(self._name, self._whole.unit),
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

    def _keep_pace(self, messages: int, longest_s: float = inf) -> None:
        """Wait while flow control keeps the next messages back."""
        if self._flow is not None:
            self._flow.wait(messages, longest_s)

    def _paced_parts(self, chunks: Iterable[Sequence[Item]]) -> Iterator[Sequence[Item]]:
        """Each chunk in the parts that flow control lets through, when it does."""
        for chunk in chunks:
            done = 0
            while done < len(chunk):
                share = len(chunk) - done if self._flow is None else self._flow.share(len(chunk) - done)
                self._keep_pace(share)
                yield chunk[done : done + share]
                done += share

    def _paced(self, batches: Iterable[pa.RecordBatch], longest_s: float = inf) -> Iterator[pa.RecordBatch]:
        """Behind the last one, when their number is known, it waits for as long as flow control keeps all of them back."""
        rows = 0
        for batch in batches:
            rows += batch.num_rows
            yield batch
        if rows:
            self._keep_pace(rows, longest_s)

    def _commit(
        self, batches: Iterable[pa.RecordBatch], now: int, transaction: TransactionId | None, sequence: int | None
    ) -> SendReport:
        self._wait_for_own_sends()
        rows, size, sent = self._whole.commit(batches, now, transaction, sequence)
        if sent is None:
            self._count(0, 0, 0, rows)
            return SendReport(0, 0, duplicates=rows)
        done = sent.version >= 0
        if not done and transaction is None:  # no rows
            return SendReport(0, 0)
        self._count(rows, int(done), done * size, int(not done))
        if done:
            self._sent(self._log, sent.version)
        self._waited()
        return SendReport(rows, int(done), sent.sequences, duplicate=not done)

    # -- the numbers of a producer id ------------------------------------------------------------------------------
    @property
    def producer_id(self) -> str | None:
        """The id that it was opened with, or None."""
        numbers = self._whole.numbers
        return None if numbers is None else numbers.producer_id

    @property
    def last_sequence(self) -> int:
        """The number of the last message of the producer id in the table, as far as this producer knows; 0: there is none. Exact when
        the producer was created, and after each send and `resume`. Raises OptionError without a producer id."""
        return self._whole.required_numbers().last

    def resume(self) -> int:
        """Continue after the last message of the producer id in the table, and return its number. After a
        CommitOutcomeUnknownError, or the error of an asynchronous send, messages without `sequence` are refused until
        this call, because their number depends on the outcome of the messages before them. Waits until asynchronous
        sends are sent."""
        self._check()
        numbers = self._whole.required_numbers()
        self._wait_for_own_sends()
        return numbers.resume()

    def _check_sequence(self, sequence: int | None) -> None:
        if sequence is not None:
            self._whole.required_numbers()
            check_sequence(sequence)

    def _wait_for_own_sends(self) -> None:
        """Those that do not wait are in the table then, or have failed. Raises ClosedError when one that was sent one-way has."""
        self._asynchronous.wait_until_sent(self._name)
        if self._one_way is not None:
            self._one_way.check()

    def _waited(self) -> None:
        if self._one_way is not None:
            self._one_way.waited()

    def _count(self, messages: int, commits: int, size: int, duplicates: int) -> None:
        with self._lock:
            self._statistics = self._statistics.counted(messages, commits, size, duplicates)

    # -- the end --------------------------------------------------------------------------------------------------
    def _check(self) -> None:
        self._process.check()
        if self._closed:
            raise ClosedError(f"this producer of {self.destination} is closed: create a new one")
        if self._one_way is not None:
            self._one_way.check()
        self._check_context()

    def statistics(self) -> ProducerStatistics:
        """Counts of messages, commits and bytes. Raises IllegalStateException in a forked child."""
        self._process.check()
        flow = NOT_SLOWED if self._flow is None else self._flow.statistics()
        now = replace(self._statistics, outstanding=self._asynchronous.outstanding(self._name), flow=flow)
        return now if self._one_way is None else replace(now, one_way=self._one_way.sent, deleted=self._one_way.deleted)

    def reset_statistics(self) -> None:
        """Count from 0 again."""
        self._process.check()
        with self._lock:
            self._statistics = ProducerStatistics()
        if self._one_way is not None:
            self._one_way.reset_statistics()

    @property
    def closed(self) -> bool:
        """Whether `close` was called, or a one-way send has failed: then open another one."""
        return self._closed or (self._one_way is not None and self._one_way.failed)

    def close(self) -> None:
        """Returns once its asynchronous and one-way sends are complete. Raises IllegalStateException in a completion listener, and
        closes nothing; ClosedError when a one-way send has failed and no exception listener or send has told it."""
        if self._process.is_parent:
            return
        self._asynchronous.refuse_in_listener("Producer.close")
        self._closed = True
        if self._flow is not None:
            self._flow.close()
        self._asynchronous.wait_until_complete(self._name)
        self._on_close(self)
        if self._one_way is not None:
            self._one_way.raise_untold()

    def __repr__(self) -> str:
        sent = self._statistics
        return (
            f"<Producer of {self.destination}: {'closed, ' if self._closed else ''}{sent.messages:,} messages in "
            f"{sent.commits:,} commits>"
        )


def flow_of(producer: Producer) -> ProducerFlow | None:
    """For a caller that waits for the pace itself; None: nothing slows the producer down."""
    return producer._flow
