"""The pipeline of a consumer: what it claims at a time, and what of that it keeps.

Features: T7, T9, T13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.messages.fetch import fetch
from spark_jms.client.messages.columns import in_units
from spark_jms.client.messages.encoding import Undecodable, decoded
from spark_jms.client.messages.message import Message, Receipt
from spark_jms.client.receiving.delivery import Key, keys_of
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import message_sizes
from spark_jms.core.ordering.sort_order import delivery_order
from spark_jms.core.records.batch import Batch, Limits, client_limits, fitting
from spark_jms.log.messages.data_files import LastRows
from spark_jms.log.messages.paging import MessageBuffer
from spark_jms.settings.types import NO_LIMIT


@dataclass(frozen=True)
class Pipeline:
    """`maximum` messages, or NO_LIMIT, of `max_bytes` together. `buffer`: of the connection."""

    maximum: int
    max_bytes: int
    buffer: MessageBuffer

    @property
    def room_bytes(self) -> int:
        """Of the next claim: one message always has room."""
        return min(self.max_bytes, max(self.buffer.free_bytes, 1))

    def limits(self, declared: Destination, first_member: int, *, hurries: bool) -> Limits:
        """Of the next claim; one that `hurries` does not wait for a full batch."""
        maximum = None if self.maximum == NO_LIMIT else self.maximum
        limits = client_limits(declared.messaging_performance_preference, maximum, self.room_bytes)
        limits = replace(limits, first_member=first_member)
        return replace(limits, min_messages=1, linger_ms=None) if hurries else limits


@dataclass(frozen=True)
class ReadBatch:
    """A claimed batch that was read. `messages` and `undecodable` are kept. `missing` are deleted from the table, and `rest` is
    more than the pipeline takes."""

    messages: list[Message]
    undecodable: list[Undecodable]
    missing: list[Key]
    rest: list[Key]


class BatchReader:
    """Reads the claimed batches of one consumer. Not thread-safe."""

    def __init__(self, subscriber: Subscriber, pipeline: Pipeline) -> None:
        self._subscriber, self._table, self._pipeline = subscriber, subscriber.table, pipeline
        self._kept_bytes = 0  # of the newest batch, in the buffer
        self._last_rows = LastRows()
        self.first_member = 0  # of the next batch: the first whose messages had no room in this one

    def forget(self) -> None:
        """No message of the newest batch is prefetched any more."""
        self._pipeline.buffer.drop(self._kept_bytes)
        self._kept_bytes = 0

    def read(self, batch: Batch, receipt: Receipt) -> ReadBatch:
        """What has no room in the buffer goes back, and is read again from the log. Raises DataLossError, or what reading
        files raises; then nothing of the batch is kept."""
        self.forget()
        units = self._table.snapshot.destination.handles_units_of_work
        messages: list[Message] = []
        undecodable: list[Undecodable] = []
        sizes = _Sizes(self._pipeline.room_bytes)
        for rows in self._rows(batch):
            found = decoded(rows, receipt)
            messages += found.messages
            undecodable += found.undecodable
            sizes.add(rows)
            if sizes.exceed and not units:
                break  # what follows goes back unread
        whole = units or not sizes.exceed
        count = len(messages) + len(undecodable)
        if units:
            messages, undecodable = in_units(messages, undecodable, receipt)
        kept = messages[: sizes.fitting(messages)]
        self._kept_bytes = sizes.of(kept)
        self._pipeline.buffer.keep(self._kept_bytes)
        if len(kept) < len(messages) or not whole:
            return ReadBatch(kept, undecodable, [], self._rest(batch, kept, undecodable))
        missing = _others(batch, kept, undecodable) if count < batch.count else []
        return ReadBatch(kept, undecodable, missing, [])

    def _rows(self, batch: Batch) -> Iterator[pa.RecordBatch]:
        for member, pick in batch.members.items():  # in the order that the claim has noted
            yield from fetch(
                self._table,
                self._subscriber.destination,
                member,
                pick.picks,
                pick.redelivered,
                fail_on_data_loss=self._subscriber.settings.fail_on_data_loss,
                table_id=self._subscriber.table_id,
                order=delivery_order(self._table.snapshot.destination),
                last=self._last_rows,
                buffer=lambda: self._pipeline.buffer,
            )

    def _rest(self, batch: Batch, kept: Sequence[Message], undecodable: Sequence[Undecodable]) -> list[Key]:
        reached = {message.member for message in kept}
        self.first_member = next((m for m in batch.members if m not in reached), 0)
        return _others(batch, kept, undecodable)


class _Sizes:
    """Counts single messages only when all together may be too large."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._uncounted: list[pa.RecordBatch] = []
        self._most = 0  # as much as all rows have at most
        self._counted: dict[Key, int] = {}
        self._total = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._uncounted.append(rows)
        self._most += rows.nbytes
        if self._most <= self._limit:
            return
        for some in self._uncounted:
            sizes = message_sizes(some).to_pylist()
            keys = zip(some.column("member").to_pylist(), some.column("sequence").to_pylist(), strict=True)
            self._counted.update(zip(keys, sizes, strict=True))
            self._total += sum(sizes)
        self._uncounted.clear()

    @property
    def exceed(self) -> bool:
        return self._total > self._limit

    def of(self, messages: Sequence[Message]) -> int:
        """Their bytes, as far as they were counted."""
        if not self.exceed:
            return self._total + sum(rows.nbytes for rows in self._uncounted)
        return sum(self._counted[key] for message in messages for key in keys_of(message))

    def fitting(self, messages: Sequence[Message]) -> int:
        """How many of the first messages the pipeline takes."""
        if not self.exceed:
            return len(messages)
        return fitting((sum(self._counted[key] for key in keys_of(message)) for message in messages), self._limit)


def _others(batch: Batch, messages: Sequence[Message], undecodable: Sequence[Undecodable]) -> list[Key]:
    """The claimed messages that are none of these."""
    known = {key for message in messages for key in keys_of(message)}
    known.update((bad.member, bad.sequence) for bad in undecodable)
    claimed = ((m, n) for m, pick in batch.members.items() for n in pick.picks.numbers().tolist())
    return [key for key in claimed if key not in known]
