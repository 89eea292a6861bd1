"""Edits on their way into the journal: edits that arrive while the journal is being written share its next write."""

from __future__ import annotations

import asyncio
import logging

from spark_jms.store.errors import StoreWriteError
from spark_jms.store.regions.client.object_journal import ObjectJournal
from spark_jms.store.webhdfs.blocks import BlockStore
from spark_jms.store.webhdfs.edits import Edit, encode_edits
from spark_jms.store.webhdfs.guard import StoreGuard
from spark_jms.store.webhdfs.options import FilesOptions
from spark_jms.store.webhdfs.tree import DirectoryTree
from spark_jms.store.webhdfs.tree_snapshot import encode_tree

log = logging.getLogger("store.replicated")


class EditLog:
    """`submit` applies an edit to the tree at once; `durable` waits until all that was submitted is in the journal. Blocks
    that an edit frees are discarded after that. From time to time a snapshot of the tree replaces the journal's batches.

    Edits that are submitted while a write is in progress wait on `_next`; the write itself is waited for on `_current`."""

    def __init__(
        self, journal: ObjectJournal, tree: DirectoryTree, blocks: BlockStore, guard: StoreGuard, options: FilesOptions
    ) -> None:
        self.mutation_count = self.journal_write_count = 0
        self._journal = journal
        self._tree = tree
        self._blocks = blocks
        self._guard = guard
        self._options = options
        self._pending: list[Edit] = []
        self._freed: list[int] = []
        self._next: asyncio.Future[None] | None = None
        self._current: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    def fits_inline(self, size: int) -> bool:
        """Whether an edit may carry a content of so many bytes itself."""
        options = self._options
        return size <= options.inline_bytes and self._tree.inline_bytes + size <= options.inline_budget_bytes

    def submit(self, edit: Edit) -> None:
        self._guard.check()
        self._freed += self._tree.apply(edit)
        self._pending.append(edit)
        self.mutation_count += 1
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="webhdfs journal")

    async def durable(self) -> None:
        """All that was submitted so far is durable. RetriableError when the store failed."""
        last = self._next or self._current
        if last is not None:
            await asyncio.shield(last)
        self._guard.check()

    async def close(self) -> None:
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _write(self) -> None:
        try:
            while self._pending:
                batch, freed = self._take()
                await self._append(batch)
                self._finish(freed)
                if self._journal.snapshot_due and self._journal.reserved:
                    await self._snapshot()
        except Exception as error:  # noqa: BLE001  whatever it is, it ends the namespace
            self._guard.fail(error)
        except asyncio.CancelledError as error:
            self._guard.fail(error)
            raise
        finally:
            self._writing = None
            if self._guard.failure is not None:
                self._wake_all()

    async def _snapshot(self) -> None:
        """Edits that arrived meanwhile are in the tree already, so the snapshot makes them durable, too."""
        batch, freed = self._take()
        try:
            freed += await self._journal.snapshot(encode_tree(self._tree), self._journal.position + len(batch))
        except StoreWriteError as error:
            log.error("%s: cannot write a snapshot, the journal keeps growing: %s", self._journal.objects.name, error)
            if batch:
                await self._append(batch)
        self._finish(freed)

    def _take(self) -> tuple[list[Edit], list[int]]:
        batch, freed = self._pending, self._freed
        self._pending, self._freed = [], []
        self._current, self._next = self._next, None
        return batch, freed

    def _finish(self, freed: list[int]) -> None:
        future, self._current = self._current, None
        if future is not None and not future.done():
            future.set_result(None)
        self._blocks.discard(freed)

    def _wake_all(self) -> None:
        """After a failure, which those who wait find in the guard."""
        for future in (self._current, self._next):
            if future is not None and not future.done():
                future.set_result(None)
        self._current = self._next = None

    async def _append(self, batch: list[Edit]) -> None:
        """The tree has these edits already, so a write that the store refuses for now is repeated, within a bound."""
        payload = encode_edits(batch)
        for attempt in range(self._options.refused_retries + 1):
            try:
                self.journal_write_count += 1
                await self._journal.append(payload, len(batch))
                return
            except StoreWriteError:
                if attempt == self._options.refused_retries:
                    raise
                await asyncio.sleep(self._options.refused_retry_ms / 1000)
