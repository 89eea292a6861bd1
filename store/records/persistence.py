"""What the engine of a store on regions writes to: a record log, in a store instance that this process opened.

Features: R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from spark_jms.store.engine import LedgerBatch, Loaded, OwnershipLostError, Persistence
from spark_jms.store.errors import RegionUnavailableError, StoreError
from spark_jms.store.net.event_loop import EventLoopThread
from spark_jms.store.records.connections import DomainConnections
from spark_jms.store.records.log import LOST, RecordLog
from spark_jms.store.regions.client.instance import StoreInstance

T = TypeVar("T")


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
        """Above yellow too: senders are refused there (published_overload.py), and consumers claim and acknowledge what the
        tables have. Only a full store refuses what makes it larger."""
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
