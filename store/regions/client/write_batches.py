"""Writes on their way to the regions: which of them share a frame, and in which order they are acknowledged.

All writes of one turn of the event loop, and all that come while WINDOW frames of a region are in flight, share a frame:
one physical write on both daemons. Operations are acknowledged in the order in which they were issued.

Features: R12, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_jms.store.errors import StoreError, error_of
from spark_jms.store.regions.core.instance import Planned
from spark_jms.store.regions.core.space import Step

FRAME_BYTES = 4 * 1024 * 1024
WINDOW = 4

Answered = Callable[[StoreError | None], None]


@dataclass(slots=True)
class _Operation:
    """One request: done when all its frames are acknowledged and no older operation waits. `leftover` is the region of an
    old block that is freed afterwards, in a frame of its own."""

    future: asyncio.Future[int]
    value: int
    frames: int
    leftover: str | None = None


@dataclass(slots=True)
class _Lane:
    """The frames of one region: the steps of the next one, and how many are in flight."""

    steps: list[Step] = field(default_factory=list)
    operations: list[_Operation] = field(default_factory=list)
    size: int = 0
    in_flight: int = 0


class WriteBatches:
    """`send` sends the steps of one frame and calls back once, with None when both copies hold it. `forget` plans the writes
    that free a leftover. After `fail` no write is sent, and every operation ends with that error."""

    def __init__(
        self,
        send: Callable[[str, list[Step], Answered], None],
        forget: Callable[[str, int], Planned],
        failed: Callable[[StoreError], None],
    ) -> None:
        self.failure: StoreError | None = None
        self.write_count = self.write_bytes = 0
        self._send_frame = send
        self._forget = forget
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[str, _Lane] = {}
        self._queue: deque[_Operation] = deque()
        self._flushing = False

    def check(self) -> None:
        """Raises the failure, as an error of its own for each caller."""
        if self.failure is not None:
            raise error_of(type(self.failure).__name__, self.failure.args)

    def issue(self, value: int, planned: Planned, leftover: str | None = None) -> asyncio.Future[int]:
        """The future becomes `value` when the operation is acknowledged."""
        operation = _Operation(self._loop.create_future(), value, len(planned), leftover)
        self._queue.append(operation)
        for region, steps in planned:
            self.push(region, steps, operation)
        self._flush_soon()
        return operation.future

    def push(self, region: str, steps: list[Step], operation: _Operation | None = None) -> None:
        lane = self._lanes.get(region) or self._lanes.setdefault(region, _Lane())
        size = sum(len(what) for _, what in steps if isinstance(what, bytes))
        if lane.steps and lane.size + size > FRAME_BYTES:
            self._send(region, lane)
        for step in steps:
            # Between two moves of a compaction the region is whole, so a long one may take several frames.
            if not isinstance(step[1], bytes) and lane.steps and lane.size > FRAME_BYTES:
                self._send(region, lane)
            lane.steps.append(step)
            lane.size += len(step[1]) if isinstance(step[1], bytes) else step[1][1]
        if operation is not None:
            lane.operations.append(operation)

    def send_now(self, region: str) -> None:
        """Sends what waits for this region, so that a read that is asked for next finds it there."""
        lane = self._lanes.get(region)
        if lane is not None and lane.steps:
            self._send(region, lane)

    @property
    def newest(self) -> asyncio.Future[int] | None:
        return self._queue[-1].future if self._queue else None

    async def drained(self) -> None:
        if self._queue:
            await asyncio.wait([operation.future for operation in self._queue])

    def _flush_soon(self) -> None:
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._flushing = False
        if self.failure is not None:
            return
        for region, lane in self._lanes.items():
            if lane.steps and (lane.in_flight < WINDOW or lane.size >= FRAME_BYTES):
                self._send(region, lane)

    def _send(self, region: str, lane: _Lane) -> None:
        steps, operations, size = lane.steps, lane.operations, lane.size
        lane.steps, lane.operations, lane.size = [], [], 0
        lane.in_flight += 1
        self.write_count += 1
        self.write_bytes += size
        try:
            self._send_frame(region, steps, lambda error: self._acknowledged(lane, operations, error))
        except StoreError as error:
            self._failed(error)

    def _acknowledged(self, lane: _Lane, operations: list[_Operation], error: StoreError | None) -> None:
        """What a caller issues when its future is done still joins the frame that is sent in this turn."""
        if error is not None:
            self._failed(error)
            return
        lane.in_flight -= 1
        for operation in operations:
            operation.frames -= 1
            if not operation.frames and operation.leftover is not None:
                leftover, operation.leftover, operation.frames = operation.leftover, None, 1
                for region, steps in self._forget(leftover, operation.value):
                    self.push(region, steps, operation)
        while self._queue and not self._queue[0].frames and self._queue[0].leftover is None:
            operation = self._queue.popleft()
            if not operation.future.done():
                operation.future.set_result(operation.value)
        self._flush_soon()

    def fail(self, error: StoreError) -> bool:
        """False when it had failed before."""
        if self.failure is not None:
            return False
        self.failure = error
        for operation in self._queue:
            if not operation.future.done():
                operation.future.set_exception(error_of(type(error).__name__, error.args))
                operation.future.exception()  # marks it as retrieved: the caller may have been cancelled
        self._queue.clear()
        return True
