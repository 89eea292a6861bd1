"""Simulated time: steps that are due at a moment, run in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush


class Schedule:
    """Time stands still while a step runs. Steps due at the same moment run in the order in which they were added."""

    def __init__(self, now_ms: float = 0.0) -> None:
        self.now_ms = now_ms
        self.steps = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._soon: deque[Callable[[], None]] = deque()  # at this moment, after those of `_due`, which are older
        self._count = 0

    def later(self, delay_ms: float, step: Callable[[], None]) -> None:
        at_ms = self.now_ms + delay_ms
        if at_ms <= self.now_ms:
            self._soon.append(step)
        else:
            self._count += 1
            heappush(self._due, (at_ms, self._count, step))

    def run_until(self, end_ms: float, stop: Callable[[], bool] | None = None) -> None:
        """Runs every step due up to `end_ms`. Asks `stop` once all steps of a moment have run.

        A step may call this method: it then waits while the rest of the world continues.
        """
        due, soon, pop = self._due, self._soon, heappop
        while self.now_ms <= end_ms:
            if due and due[0][0] <= self.now_ms:
                step = pop(due)[2]
            elif soon:
                step = soon.popleft()
            elif due and due[0][0] <= end_ms:
                if stop is not None and stop():
                    return
                self.now_ms, _, step = pop(due)
            else:
                break
            self.steps += 1
            step()
        if stop is None or not stop():
            self.now_ms = max(self.now_ms, end_ms)
