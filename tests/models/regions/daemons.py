"""A daemon process: the core of its present life, its memory, its clock, and the events that wait while it stands still."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.regions.core.actions import Action
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.protocol.region_entry import Holder
from tests.models.regions.directory import SimDirectory
from tests.models.regions.memory import SimMemory
from tests.models.regions.schedule import Schedule


class Moment(Enum):
    SWAP = "the directory has its change, and it does not know yet"
    SEND = "before its next frame"


@dataclass
class Fate:
    """The daemon dies at the moment of this kind that makes `left` 0."""

    moment: Moment
    left: int
    die: Callable[[], None]


class SimDaemon:
    """`core` is None while the daemon is down. Each life has its own incarnation, memory and clock."""

    def __init__(
        self, index: int, limit_bytes: int, schedule: Schedule, perform: Callable[[SimDaemon, list[Action]], None]
    ) -> None:
        self.index = index
        self.limit_bytes = limit_bytes
        self._schedule = schedule
        self._perform = perform
        self.core: DaemonCore | None = None
        self.memory: SimMemory | None = None
        self.directory: SimDirectory | None = None
        self.paused = False
        self.inbox: list[tuple[DaemonCore, Callable[..., list[Action]], tuple[object, ...]]] = []
        self.lives = 0
        self.slept_ms = self.woke_ms = 0.0  # the last time that it stood still: from, to
        self.fate: Fate | None = None
        self.wall_skew_us = 0
        self._clock_ms = 0.0  # at `_read_ms`
        self._read_ms = 0.0
        self._clock_rate = 1.0
        self._stands = False

    @property
    def running(self) -> DaemonCore:
        assert self.core is not None, f"daemon {self.index} is down"
        return self.core

    def is_life(self, holder: Holder) -> bool:
        return self.core is not None and self.core.me == holder

    # ---- its clock

    def begin_life(self, clock_ms: float, rate: float) -> None:
        self.lives += 1
        self.paused, self.fate = False, None
        self.inbox.clear()
        self._clock_ms, self._read_ms, self._clock_rate, self._stands = clock_ms, self._schedule.now_ms, rate, False

    def clock_ms(self) -> float:
        """The daemon's own clock. It never goes back within one life, and other daemons cannot compare it."""
        if self._stands:
            return self._clock_ms
        return self._clock_ms + (self._schedule.now_ms - self._read_ms) * self._clock_rate

    def jump(self, ms: float) -> None:
        self._clock_ms += ms

    def stop_clock(self) -> None:
        """The clock stands while the daemon runs, and has caught up when it goes again."""
        if not self._stands:
            self._clock_ms, self._read_ms, self._stands = self.clock_ms(), self._schedule.now_ms, True

    def continue_clock(self) -> None:
        self._stands = False

    def wall_us(self) -> int:
        return int(self._schedule.now_ms * 1000) + self.wall_skew_us

    def stop(self) -> None:
        self.core, self.memory, self.directory, self.paused, self.fate = None, None, None, False, None
        self.inbox.clear()

    def feed(self, core: DaemonCore, event: Callable[..., list[Action]], *arguments: object) -> None:
        """Passes an event to this life of the daemon: now, or when the daemon wakes. `event` is a method of `core`, which
        gets the daemon's clock of that moment before the arguments."""
        if self.core is not core:
            return
        if self.paused:
            self.inbox.append((core, event, arguments))
        else:
            self._perform(self, event(self.clock_ms(), *arguments))

    def wake(self) -> None:
        """Handles what arrived meanwhile, in order."""
        self.paused, self.woke_ms = False, self._schedule.now_ms
        inbox, self.inbox = self.inbox, []
        for core, event, arguments in inbox:
            if self.core is core:
                self._perform(self, event(self.clock_ms(), *arguments))
