"""Backpressure of asynchronous senders: how much of one context may be outstanding.

Features: M7 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections import deque


class SendRoom:
    """`enter` waits, first come, first served, until the messages and bytes fit; a message that is larger than all the room goes
    alone. One event loop's; not thread-safe."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages, self._max_bytes = max_messages, max_bytes
        self._messages = self._bytes = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def messages(self) -> int:
        return self._messages

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter, _ in self._waiting)

    async def enter(self, size: int) -> None:
        """Cancelled, it has taken no room."""
        if not self._waiting and self._fits(size):
            self._take(size)
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((waiter, size))
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._grant()  # those behind it may fit
            else:  # it was given room at the same moment
                self.leave(size)
            raise

    def leave(self, size: int) -> None:
        self._messages -= 1
        self._bytes -= size
        self._grant()

    def _fits(self, size: int) -> bool:
        return not self._messages or (self._messages < self._max_messages and self._bytes + size <= self._max_bytes)

    def _take(self, size: int) -> None:
        self._messages += 1
        self._bytes += size

    def _grant(self) -> None:
        while self._waiting:
            waiter, size = self._waiting[0]
            if not waiter.cancelled():
                if not self._fits(size):
                    return
                self._take(size)
                waiter.set_result(None)
            self._waiting.popleft()
