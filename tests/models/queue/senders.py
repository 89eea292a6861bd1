"""Senders of the model: each has routed its messages by some declaration, and may commit them much later."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spark_jms.core.destinations.pause import INSERTION, PRODUCTION
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    CommitConflictError,
    DestinationPausedError,
    DestinationReplacedError,
    InsertionPausedError,
    InvalidDestinationError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import TransactionId, send
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import RouteId
from tests.models.queue.clock import Clock
from tests.models.queue.rules import Rules
from tests.models.queue.tables import ROOT, Tables


@dataclass
class Shipment:
    """Staged files and, for each, the texts of its rows."""

    files: list[StagedFile]
    texts: dict[str, list[str]]  # path -> texts
    route: RouteId


class _NotedWriter(MessageWriter):
    """Notes the texts of each member's rows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.noted: dict[int, list[str]] = {}

    def write_routed(self, rows: pa.RecordBatch, members: Any, *placed: Any) -> None:
        texts = rows.column("text").to_pylist()
        for member in pc.unique(members).tolist():
            self.noted.setdefault(member, []).extend(
                texts[i] for i in pc.indices_nonzero(pc.equal(members, member)).tolist()
            )
        super().write_routed(rows, members, *placed)


def _texts(log: DeltaLog, file: StagedFile) -> list[str]:
    """Of a file that was routed again: the members have changed since it was staged."""
    data = log.storage.get(file.path)
    assert data is not None, "a committed file is missing"
    texts: list[str] = pq.read_table(io.BytesIO(data), columns=["text"])["text"].to_pylist()
    return texts


@dataclass
class Senders:
    """Each send of the model is by another process, so it may die at any write (`killable`)."""

    tables: Tables
    random: random.Random
    clock: Clock
    killable: Callable[[Callable[[], object]], bool]
    rules: Rules
    groups: dict[str, str | None] = field(default_factory=dict)  # text -> unit of order
    delayed: set[str] = field(default_factory=set)
    priorities: dict[str, int] = field(default_factory=dict)
    due_ms: dict[str, int] = field(default_factory=dict)  # text -> when it may be delivered
    expires: dict[str, int] = field(default_factory=dict)  # text -> when, ms; 0: never
    staged: list[Shipment] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.domain = Domain(ROOT)

    def send(self) -> None:
        def send() -> None:
            shipment = self._write()
            if shipment is not None:
                self._put(shipment)

        self.killable(send)

    def stage(self) -> None:
        def stage() -> None:
            shipment = self._write()
            if shipment is not None:
                self.staged.append(shipment)

        self.killable(stage)

    def commit_staged(self) -> None:
        if self.staged:
            shipment = self.staged.pop(0)
            self.killable(lambda: self._put(shipment))

    def finish(self) -> None:
        while self.staged:
            self._put(self.staged.pop(0))

    def _write(self) -> Shipment | None:
        """None: the destination is being dropped."""
        try:
            log = self.domain.log(self.tables.orders.name)
            snapshot = log.refresh()
        except InvalidDestinationError:
            assert not self.tables.orders.table_id, "a destination that was not dropped cannot be found"
            return None
        texts = [str(self.count + i) for i in range(self.random.choice([1, 2, 5, 30]))]
        self.count += len(texts)
        units = [None] if self.rules.forwards else [None, None, "a", "b", "c"]  # a unit of order stays where it is
        groups = [self.random.choice(units) for _ in texts]
        self.groups.update(zip(texts, groups, strict=True))
        delays = [self.random.choice([0] * 9 + [5_000, 60_000]) for _ in texts]
        self.delayed.update(text for text, delay in zip(texts, delays, strict=True) if delay)
        lives = [
            self.random.choice([0, 0, 0, 0, 0, 2_000, 30_000, 3_600_000]) if self.rules.expires else 0 for _ in texts
        ]
        ends = [self.clock.ms() + delay + life if life else 0 for delay, life in zip(delays, lives, strict=True)]
        self.expires.update(zip(texts, ends, strict=True))
        columns = {
            "text": texts,
            "JMSXGroupID": pa.array(groups, pa.string()),
            "JMSExpiration": ends,
            "JMSPriority": [self.random.randint(0, 9) for _ in texts],
            "JMSDeliveryTime": [self.clock.ms() + delay for delay in delays],
        }
        self.priorities.update(zip(texts, columns["JMSPriority"], strict=True))
        self.due_ms.update(zip(texts, columns["JMSDeliveryTime"], strict=True))
        writer = _NotedWriter(log.storage, snapshot.destination, self.random.randint(0, 9))
        writer.write(pa.RecordBatch.from_pydict(columns))
        files = writer.close()
        return Shipment(files, {file.path: writer.noted[file.member] for file in files}, snapshot.route_id)

    def _put(self, shipment: Shipment) -> None:
        transaction = TransactionId("sender", self.count) if self.random.random() < 0.3 else None
        table_id = self.tables.orders.table_id
        try:
            log = self.domain.log(self.tables.orders.name)
            sent = send(log, shipment.files, shipment.route, transaction)
        except InvalidDestinationError:
            assert not table_id, "a destination that was not dropped refuses a send"
            return
        except DestinationReplacedError:
            assert shipment.route.table_id != table_id, "a send to its own table is refused"
            return
        except DestinationPausedError as error:
            operation = INSERTION if isinstance(error, InsertionPausedError) else PRODUCTION
            standing = self.tables.snapshot(self.tables.orders).destination.pauses.all if table_id else ()
            stands = any(pause.operation == operation for pause in standing)
            assert stands or shipment.route.table_id != table_id, f"a send was refused, but nothing paused {operation}"
            return
        except CommitConflictError:  # written too long ago, or clean-up was faster
            return
        assert shipment.route.table_id == table_id, "messages that were routed for another table were sent"
        pauses = self.tables.snapshot(self.tables.orders).destination.pauses
        for file in sent.files if pauses else ():
            production = pauses.find(PRODUCTION, file.member)
            late = production is not None and production.epoch <= shipment.route.epoch
            assert not late, (
                f"messages were sent to member {file.member}, whose production was paused before they were planned"
            )
            assert not pauses.find(INSERTION, file.member), (
                f"messages were sent to member {file.member}, insertion is paused"
            )
        got = {member: sequences.numbers().tolist() for member, sequences in sent.sequences.items()}
        assert sum(map(len, got.values())) == sum(map(len, shipment.texts.values()))
        committed = {file.path: shipment.texts.get(file.path) or _texts(log, file) for file in sent.files}
        assert sorted(chain.from_iterable(committed.values())) == sorted(chain.from_iterable(shipment.texts.values()))
        for file in sent.files:
            texts = committed[file.path]
            numbers, got[file.member] = got[file.member][: len(texts)], got[file.member][len(texts) :]
            assert numbers == list(range(numbers[0], numbers[0] + len(texts))), "a file's messages have gaps"
            ends = [self.expires[text] for text in texts]
            self.tables.enter(table_id, file.member, numbers[0], texts, ends)
        if transaction:
            again = self._write()
            assert again is not None
            assert send(log, again.files, again.route, transaction).version == -1
