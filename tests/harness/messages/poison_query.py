"""A query with onPoison=isolate, driven as Spark drives it, and its sink (M4)."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.client.messages.message import Message
from spark_jms.spark.options import StopSignal, parse_options
from spark_jms.spark.source import JmsqStreamReader

Offset = dict[str, Any]
Row = dict[str, Any]


class Refused(Exception):
    """The sink cannot take the batch."""


class Died(Exception):
    """The driver is killed."""


@dataclass
class Sink:
    """Takes each batch once, as one that recognises it by its number; refuses batches with a text in `bad`. The driver dies
    before (`dies_before`) or after (`dies_after`) the sink commits, at these attempts."""

    bad: set[str] = field(default_factory=set)
    dies_before: set[int] = field(default_factory=set)
    dies_after: set[int] = field(default_factory=set)
    fails_after: set[int] = field(default_factory=set)
    batches: dict[int, list[Row]] = field(default_factory=dict)
    attempts: int = 0
    sizes: list[int] = field(default_factory=list)
    refused: list[list[str]] = field(default_factory=list)

    def take(self, number: int, rows: list[Row]) -> None:
        self.attempts += 1
        self.sizes.append(len(rows))
        if self.attempts in self.dies_before:
            raise Died
        if number not in self.batches:
            if self.bad & {row["text"] for row in rows}:
                self.refused.append([row["text"] for row in rows])
                raise Refused
            self.batches[number] = rows
        if self.attempts in self.dies_after:
            raise Died
        if self.attempts in self.fails_after:
            raise Refused

    @property
    def rows(self) -> list[Row]:
        return [row for _, rows in sorted(self.batches.items()) for row in rows]

    @property
    def texts(self) -> list[str]:
        return [row["text"] for row in self.rows]


@dataclass
class Query:
    """A query with its checkpoint: the offsets that Spark has logged, and how many of their batches it has committed."""

    root: str
    destination: str
    sink: Sink
    options: dict[str, str] = field(default_factory=dict)
    offsets: list[Offset] = field(default_factory=list)
    committed: int = 0
    restarts: int = 0
    unlogged: int = 0  # the driver dies once before it logs the offset of this number
    committed_hook: Callable[[], object] | None = None  # called when Spark has a batch in its commit log

    def drain(self, most: int = 60) -> None:
        """Start the query, again after each failure, until it finds no more messages."""
        for _ in range(most):
            if self.run():
                return
            self.restarts += 1
        raise AssertionError(f"still failing after {most} restarts")

    def run(self) -> bool:
        given = {"onPoison": "isolate", "idempotentSink": "true", **self.options}
        reader = JmsqStreamReader(parse_options({"root": self.root, "destination": self.destination, **given}))
        try:
            if not self.offsets:
                self.offsets.append(reader.initialOffset())
                assert reader.latestOffset(self.offsets[0], ReadMaxRows(10_000)) == self.offsets[0]
                self.committed = 1
            while True:
                if self.committed == len(self.offsets):
                    end = reader.latestOffset(self.offsets[-1], ReadMaxRows(10_000))
                    if end == self.offsets[-1]:
                        return True
                    if len(self.offsets) == self.unlogged:
                        self.unlogged = 0
                        raise Died
                    self.offsets.append(end)
                self._batch(reader)
        except Refused:
            if _signal_of(reader) is not None:  # else it would end this process
                signal.raise_signal(signal.SIGTERM)  # as Spark ends the process of a source whose query has failed
        except Died:
            caught = _signal_of(reader)
            if caught is not None:
                caught._driver = 0  # it is not the parent any more
        finally:
            reader.stop()
        return False

    def _batch(self, reader: JmsqStreamReader) -> None:
        parts = reader.partitions(self.offsets[-2], self.offsets[-1])
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        self.sink.take(len(self.offsets) - 1, rows)
        self.committed += 1
        if self.committed_hook is not None:
            self.committed_hook()


def drained_by_dying_driver(root: str, attempt: int) -> tuple[list[str], Sink]:
    """Sends eight texts, the sixth of them poison, and drains them with a driver that dies at this attempt: before the sink
    commits if its number is odd, else after it. Returns the texts, and the sink."""
    texts = [f"{attempt}/{n}" for n in range(8)]
    send(root, "orders", *texts)
    sink = Sink(bad={texts[5]}, **{"dies_before" if attempt % 2 else "dies_after": {attempt}})
    Query(root, "orders", sink).drain()
    return texts, sink


def send(root: str, to: str, *texts: str, group: str | None = None) -> None:
    with connect(root, housekeeping=False) as context:
        context.producer(to).send_many({"text": text, "group_id": group} for text in texts)


def received(root: str, destination: str) -> list[Message]:
    out = []
    with connect(root, housekeeping=False) as context, context.consumer(destination) as consumer:
        while (message := consumer.receive(0)) is not None:
            out.append(message)
            message.acknowledge()
    return out


def numbers(first: int, last: int) -> list[str]:
    return [str(n) for n in range(first, last + 1)]


def _signal_of(reader: JmsqStreamReader) -> StopSignal | None:
    """From the time when the reader has opened its subscription."""
    return reader._signal
