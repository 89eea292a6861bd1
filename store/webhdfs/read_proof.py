"""Proof that this process still has the namespace open, for what it answers from memory.

The theory is that of an engine's reads, see engine/read_lease.py: the answer is made first, then a proof is required that is
at most LEASE_MS old; and a process that has just opened the namespace keeps it closed for START_WAIT_MS. So when a newer
write exists, each proof of a door that was stopped has expired.

Features: R8, R19 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from spark_jms.store.engine.read_lease import ReadLease
from spark_jms.store.errors import RegionUnavailableError, StoreError
from spark_jms.store.webhdfs.errors import RetriableError
from spark_jms.store.webhdfs.guard import StoreGuard

Prove = Callable[
    [], Awaitable[None]
]  # RegionUnavailableError when it cannot tell now; any other StoreError: not open any more


async def nothing_to_prove() -> None:
    """For objects that no other process can open."""


class ReadProof:
    def __init__(self, prove: Prove, guard: StoreGuard, lease: ReadLease | None = None) -> None:
        self._prove = prove
        self._guard = guard
        self._lease = lease or ReadLease()
        self._proving = asyncio.Lock()  # readers that wait at the same time share one proof

    async def require(self) -> None:
        """Call it after the answer was made. RetriableError when the answer may be out of date."""
        if self._lease.holds():
            return
        async with self._proving:
            if self._lease.holds():
                return
            self._guard.check()
            asked_ms = self._lease.now_ms()
            try:
                await self._prove()
            except RegionUnavailableError as error:
                raise RetriableError(f"The door cannot tell whether it still serves the namespace: {error}") from error
            except StoreError as error:
                self._guard.fail(error)
                raise RetriableError(f"The namespace lost its store: {error}") from error
            self._lease.proved(asked_ms)
