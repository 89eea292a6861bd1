"""What the engine of a store on regions writes to: a record log, in a store instance that this process opened.

Beside it, DomainConnections counts what the engine does to objects, by the connection of the domain that it serves.

Features: R13, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any, TypeVar

from spark_jms.store.contract import Operation, Put
from spark_jms.store.engine.entry_log import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.errors import RegionUnavailableError, StoreError
from spark_jms.store.ledger.record import Change, Prepared, Resolved, Written
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.protocol.messages import ConnectionRow
from spark_jms.store.replicated.log import LOST, RecordLog

T = TypeVar("T")
SERVER, SUBSCRIPTIONS = "messaging.jmsServer.", "messaging.jmsServer.durablesubs."
QUEUE = "-"  # stands for the subscription in the name of a record set of a queue


class ReplicatedPersistence(Persistence):
    """Ownership lasts as long as the instance. Called from the engine's threads; the log runs on `loop`."""

    def __init__(self, loop: EventLoopThread, instance: StoreInstance, log_: RecordLog) -> None:
        self.incarnation = secrets.token_hex(8)
        self.instance = instance
        self._loop = loop
        self._log = log_
        self._closed = False
        self._connections = DomainConnections(instance.name)
        instance.count_by(self._connections.rows)
        instance.reclaims(lambda: log_.reclaimable_bytes)
        self.had_owner = not instance.is_new

    def load(self) -> Loaded:
        return self._call(self._log.load())

    def append(self, batch: LedgerBatch) -> None:
        """Above yellow too: senders are refused there (regions/directory/overload.py), and consumers claim and acknowledge what
        the tables have. Only a full store refuses what makes it larger."""
        self._call(self._append(batch))

    async def _append(self, batch: LedgerBatch) -> None:
        await self._log.append(batch)
        self._connections.kept(batch)

    def prove(self) -> None:
        """The daemon answers for a region that it serves and that this process has open."""
        try:
            self._loop.call(self.instance.prove())
        except RegionUnavailableError:
            raise
        except LOST as error:
            raise OwnershipLostError(str(error)) from error

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.call(coroutine)
        except LOST as error:
            raise OwnershipLostError(str(error)) from error

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            with contextlib.suppress(StoreError, CancelledError):
                self._loop.call(self.instance.close())


class DomainConnections:
    """The connections of a domain to its store, with the text's names, and their counts. Pure.

        messaging.jmsServer.STORE                the record sets of queues and consumers, and everything else
        messaging.jmsServer.durablesubs.STORE    the record sets of durable subscriptions, which only topics have

    The text begins them with its maker's name, and has more for services that a domain does not have. They count what one
    engine does to the objects of the record sets: every batch that was kept. What is there before the first one, the engine has
    read. A record set is read from the store when an engine opens it; later reads are answered from memory, and not counted.
    """

    def __init__(self, store: str) -> None:
        self._server, self._subscriptions = _Counts(), _Counts()
        self._store = store
        self._begun = False

    def rows(self) -> tuple[ConnectionRow, ...]:
        named = ((SERVER, self._server), (SUBSCRIPTIONS, self._subscriptions))
        return tuple(
            ConnectionRow(prefix + self._store, c.create, c.read, c.update, c.delete, c.objects) for prefix, c in named
        )

    def kept(self, batch: LedgerBatch) -> None:
        if not self._begun:
            self._begun = True
            for name, record in batch.before.records.items():
                self._of(name).loaded(len(record.objects))
        exists: dict[tuple[str, str], bool] = {}  # as far as the batch has changed it
        for change in _changes(batch):
            counts, before = self._of(change.name), batch.before.records.get(change.name)
            for operation in change.operations:
                key = (change.name, operation.key)
                existed = exists.get(key, before is not None and operation.key in before.objects)
                counts.did(operation, existed)
                exists[key] = isinstance(operation, Put)

    def _of(self, record: str) -> _Counts:
        kind, *parts = record.split("/")
        return self._subscriptions if kind == "members" and len(parts) > 1 and parts[1] != QUEUE else self._server


@dataclass
class _Counts:
    create: int = 0
    read: int = 0
    update: int = 0
    delete: int = 0
    objects: int = 0

    def loaded(self, objects: int) -> None:
        self.read += objects
        self.objects += objects

    def did(self, operation: Operation, existed: bool) -> None:
        if not isinstance(operation, Put):
            self.delete += 1
            self.objects -= existed
        elif existed:
            self.update += 1
        else:
            self.create += 1
            self.objects += 1


def _changes(batch: LedgerBatch) -> Iterator[Change]:
    """Those of a prepared transaction once it is resolved."""
    prepared: dict[str, Iterable[Change]] = {}
    for entry in batch.entries:
        if isinstance(entry, Written):
            yield from entry.changes
        elif isinstance(entry, Prepared):
            prepared[entry.xid] = entry.changes
        elif isinstance(entry, Resolved) and entry.commit:
            yield from prepared.get(entry.xid) or batch.before.prepared.get(entry.xid, ())
