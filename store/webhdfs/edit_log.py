"""Edits on their way into the journal: edits that arrive while the journal is being written share its next write.

Features: R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from spark_jms.store.errors import StoreFullError, StoreWriteError
from spark_jms.store.regions.client.object_journal import ObjectJournal
from spark_jms.store.webhdfs.blocks import BlockStore, FilesOptions, StoreGuard
from spark_jms.store.webhdfs.errors import NoSpaceError
from spark_jms.store.webhdfs.inode import Edit, encode_edits, growth_of
from spark_jms.store.webhdfs.tree import DirectoryTree, encode_tree

log = logging.getLogger("store.replicated")

Result = TypeVar("Result")


class RoomNeeded(Exception):
    """The edit was not applied, because the journal has no room yet for a snapshot that is so much longer."""

    def __init__(self, growth: int) -> None:
        super().__init__(growth)
        self.growth = growth


class EditLog:
    """`submit` applies an edit to the tree at once; `durable` waits until all that was submitted is in the journal. Blocks
    that an edit frees are discarded after that. From time to time a snapshot of the tree replaces the journal's batches.

    Edits that are submitted while a write is in progress wait on `_next`; the write itself is waited for on `_current`.

    An edit that makes the tree grow needs room in the journal before it is applied. Any other edit is sure to be
    kept: when a full store refuses the journal's write, a snapshot of the tree takes its place."""

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
        self._pending_growth = self._current_growth = 0
        self._snapshot_wanted = False
        self._next: asyncio.Future[None] | None = None
        self._current: asyncio.Future[None] | None = None
        self._writing: asyncio.Task[None] | None = None

    def fits_inline(self, size: int) -> bool:
        """Whether an edit may carry a content of so many bytes itself."""
        options = self._options
        return size <= options.inline_bytes and self._tree.inline_bytes + size <= options.inline_budget_bytes

    def submit(self, edit: Edit) -> None:
        """RoomNeeded: call it through `with_room`."""
        self._guard.check()
        growth = growth_of(edit)
        if growth and not self._journal.admits(self._pending_growth + self._current_growth + growth):
            raise RoomNeeded(growth)
        self._pending_growth += growth
        self._freed += self._tree.apply(edit)
        self._pending.append(edit)
        self.mutation_count += 1
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._start_writing()

    def _start_writing(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="webhdfs journal")

    async def with_room(self, attempt: Callable[[], Result]) -> Result:
        """Calls `attempt`, which submits an edit, and calls it again when the journal needed more room first."""
        while True:
            try:
                return attempt()
            except RoomNeeded as needed:
                await self.make_room(needed.growth)

    async def make_room(self, growth: int) -> None:
        """NoSpaceError when the tree cannot grow by so many bytes. A snapshot may show that it has become smaller."""
        if await self._reserve(growth):
            return
        if self._journal.growth.batches:
            self._snapshot_wanted = True
            self._start_writing()
            while self._snapshot_wanted and self._writing is not None:
                await asyncio.wait([self._writing])
            if await self._reserve(growth):
                return
        raise NoSpaceError("The store is full; files can be deleted, not made")

    async def _reserve(self, growth: int) -> bool:
        return await self._guard.call(self._journal.reserve(self._pending_growth + self._current_growth + growth))

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
            while self._pending or self._snapshot_wanted:
                if self._pending:
                    batch, freed = self._take()
                    await self._append(batch, freed)
                    self._finish(freed)
                if self._journal.snapshot_due or self._snapshot_wanted:
                    await self._snapshot()
        except Exception as error:  # noqa: BLE001  whatever it is, it ends the namespace
            self._guard.fail(error)
        except asyncio.CancelledError as error:
            self._guard.fail(error)
            raise
        finally:
            self._writing = None
            self._snapshot_wanted = False
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
                await self._append(batch, freed)
        self._snapshot_wanted = False
        self._finish(freed)

    def _take(self) -> tuple[list[Edit], list[int]]:
        batch, freed = self._pending, self._freed
        self._pending, self._freed = [], []
        self._current_growth, self._pending_growth = self._pending_growth, 0
        self._current, self._next = self._next, None
        return batch, freed

    def _take_more(self, batch: list[Edit], freed: list[int]) -> None:
        """Adds the edits that arrived meanwhile to a batch on its way."""
        batch += self._pending
        freed += self._freed
        self._pending, self._freed = [], []
        self._current_growth, self._pending_growth = self._current_growth + self._pending_growth, 0
        current, later = self._current, self._next
        if current is not None and later is not None:
            current.add_done_callback(lambda _: _finish(later))
            self._next = None

    def _finish(self, freed: list[int]) -> None:
        future, self._current, self._current_growth = self._current, None, 0
        _finish(future)
        self._blocks.discard(freed)

    def _wake_all(self) -> None:
        """After a failure, which those who wait find in the guard."""
        for future in (self._current, self._next):
            _finish(future)
        self._current = self._next = None

    async def _append(self, batch: list[Edit], freed: list[int]) -> None:
        """The tree has these edits already, so a write that the store refuses for now is repeated, within a bound. A full
        store gets a snapshot instead; the objects that it replaces are added to `freed`."""
        for attempt in range(self._options.refused_retries + 1):
            try:
                self.journal_write_count += 1
                try:
                    await self._journal.append(encode_edits(batch), len(batch), self._current_growth)
                except StoreFullError:
                    self._take_more(batch, freed)
                    position = self._journal.position + len(batch)
                    freed += await self._journal.snapshot(encode_tree(self._tree), position, full=True)
                return
            except StoreWriteError:
                if attempt == self._options.refused_retries:
                    raise
                await asyncio.sleep(self._options.refused_retry_ms / 1000)


def _finish(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
