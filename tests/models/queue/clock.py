"""Time as a number, for every process of the model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Clock:
    """Takes the place of the module `time` where the code reads a clock or waits."""

    now_ms: int = 1_800_000_000_000

    def ms(self) -> int:
        return self.now_ms

    def time_ns(self) -> int:
        return self.now_ms * 1_000_000

    def monotonic(self) -> float:
        return self.now_ms / 1000

    def sleep(self, seconds: float) -> None:
        self.now_ms += max(int(seconds * 1000), 1)
