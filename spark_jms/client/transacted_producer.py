"""A producer of a transacted session: its messages are sent by the session's commit.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from spark_jms.client.columns import Item, carried_bytes, item_bytes
from spark_jms.client.completion import CompletionListener
from spark_jms.client.message import Message, MessageArguments
from spark_jms.client.producer import Producer
from spark_jms.client.producer_arguments import CHUNK_MESSAGES
from spark_jms.client.send_report import SendReport
from spark_jms.client.shared_send import OutgoingMessages, Part, SentPosition, by_newest, rows_of
from spark_jms.client.tracing import SendSpan
from spark_jms.core.body_compression import compressed
from spark_jms.core.message import IN_ARROW, check_sendable, normalise
from spark_jms.core.unit_of_work import check_parts
from spark_jms.core.unit_order import refuse_units, with_default_unit
from spark_jms.errors import IllegalStateException
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.message_buffer import MessageBuffer, PagedRows
from spark_jms.log.send import TransactionId
from spark_jms.log.storage import now_ms

# Takes rows without ids, and returns their message ids.
Collect = Callable[[DeltaLog, pa.RecordBatch, OutgoingMessages], Sequence[str]]


class TransactedProducer(Producer):
    """Made by `TransactedSession.producer`; see `Producer`. `send` checks the message and gives it its id; member and sequence are
    given by the commit. Sends are neither asynchronous nor one-way, and have no `transaction` of their own."""

    def __init__(self, collect: Collect, buffer: MessageBuffer, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._collect, self._buffer = collect, buffer

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
        raise IllegalStateException(
            f"a transacted session sends to {self.destination} when it commits, so a send cannot be asynchronous: leave out "
            "`completion`, or use a producer of the context"
        )

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
        self._keep_pace(0)
        declared, now = self._log.refresh().destination, now_ms()
        accepted, size = PagedRows(self._buffer), 0
        try:
            for batch in batches:
                check_sendable(batch.schema, IN_ARROW)
                rows = normalise(batch, now, declared.max_message_bytes)
                if declared.handles_units_of_work:
                    check_parts(rows)
                if declared.forward_delay_ms is not None:
                    refuse_units(rows, declared.name)
                rows = with_default_unit(compressed(rows, self._threshold), declared.default_unit(self._name))
                accepted.append(rows)
                size += carried_bytes(rows)
            count = accepted.count
            for rows in accepted:  # all of them, since each was accepted
                self._collect(self._log, rows, self._outgoing((), now, None))
        finally:
            accepted.clear()
        self._count(count, 0, size, 0)
        return SendReport(count, 0)


class _CollectedPart(Part):
    """Its messages have ids, and no member and sequence yet."""

    def __init__(self, outgoing: OutgoingMessages, ids: Sequence[str]) -> None:
        super().__init__(outgoing)
        self._ids = ids

    def positions(self) -> list[SentPosition]:
        return [SentPosition(-1, 0, each) for each in self._ids]


def _refuse(transaction: object) -> None:
    if transaction is not None:
        raise IllegalStateException(
            "the messages belong to the transaction of the session: leave out `transaction`, or use a producer of the context"
        )
