"""The store as the namespace sees it: its refusals become refusals of the door, its failure ends the namespace.

Features: R13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import TypeVar

from spark_jms.store.errors import (
    ObjectNotFoundError,
    ResourceAllocationException,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreWriteError,
)
from spark_jms.store.regions.client.object_journal import ObjectJournal
from spark_jms.store.webhdfs.errors import NoSpaceError, RemoteIOError, RetriableError

Result = TypeVar("Result")


class StoreGuard:
    """`failure` is the error that ended the namespace. Once it is set, `check` refuses everything."""

    def __init__(self, journal: ObjectJournal) -> None:
        self.failure: BaseException | None = None
        self._journal = journal

    def check(self) -> None:
        if self.failure is not None:
            raise RetriableError(f"The namespace lost its store: {self.failure}")

    def fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error

    async def call(self, operation: Awaitable[Result]) -> Result:
        """Await an operation of the store; its errors become RemoteErrors."""
        if self.failure is not None and isinstance(operation, Coroutine):
            operation.close()
        self.check()
        try:
            return await operation
        except ResourceAllocationException:
            raise
        except StoreFullError as error:
            raise NoSpaceError(f"The store is full: {error.detail()}") from error
        except StoreWriteError as error:
            raise RetriableError(str(error)) from error
        except (StoreCorruptError, ObjectNotFoundError) as error:
            raise RemoteIOError(f"A block cannot be read: {error}") from error
        except StoreError as error:
            self.fail(error)
            raise RetriableError(f"The namespace lost its store: {error}") from error

    async def check_overload(self) -> None:
        """Refuse what makes the namespace grow while the store is overloaded."""
        try:
            await self.call(self._journal.objects.check_overload())
        except ResourceAllocationException as error:
            raise NoSpaceError(f"{error.detail()}; files can be deleted, not made") from error
