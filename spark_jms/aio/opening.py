"""What opens something asynchronously: `await` it, or use it in `async with`, which also closes what it has opened.

Features: M7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar


class AsyncClosable(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


T = TypeVar("T", bound=AsyncClosable)


class AsyncOpening(Generic[T]):
    """`await context.producer("orders")` returns the producer; `async with context.producer("orders") as producer` closes it at
    its end."""

    def __init__(self, open_it: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = open_it
        self._opened: T | None = None

    def __await__(self) -> Generator[Any, None, T]:
        return self._open().__await__()

    async def __aenter__(self) -> T:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._opened is not None
        await self._opened.__aexit__(kind, error, trace)
