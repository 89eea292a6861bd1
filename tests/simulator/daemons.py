"""A daemon process: the core of its present life, its memory, its clock, and the events that wait while it stands still."""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.store.regions.core.daemon import Action, DaemonCore
from spark_jms.store.regions.core.directory import Holder
from tests.simulator.directory import SimDirectory
from tests.simulator.memory import SimMemory
from tests.simulator.schedule import Schedule


class SimDaemon:
    """`core` is None while the daemon is down. Each life has its own incarnation, memory and clock offset."""

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
        self.inbox: list[tuple[DaemonCore, Callable[[], list[Action]]]] = []
        self.lives = 0
        self.clock_offset_ms = 0.0
        self.wall_skew_us = 0

    @property
    def running(self) -> DaemonCore:
        assert self.core is not None, f"daemon {self.index} is down"
        return self.core

    def is_life(self, holder: Holder) -> bool:
        return self.core is not None and self.core.me == holder

    def clock_ms(self) -> float:
        """The daemon's own clock. It never goes back within one life, and other daemons cannot compare it."""
        return self._schedule.now_ms + self.clock_offset_ms

    def wall_us(self) -> int:
        return int(self._schedule.now_ms * 1000) + self.wall_skew_us

    def stop(self) -> None:
        self.core, self.memory, self.directory, self.paused = None, None, None, False
        self.inbox.clear()

    def feed(self, core: DaemonCore, event: Callable[[], list[Action]]) -> None:
        """Passes an event to this life of the daemon: now, or when the daemon wakes."""
        if self.core is not core:
            return
        if self.paused:
            self.inbox.append((core, event))
        else:
            self._perform(self, event())

    def wake(self) -> None:
        """Handles what arrived meanwhile, in order."""
        self.paused = False
        inbox, self.inbox = self.inbox, []
        for core, event in inbox:
            if self.core is core:
                self._perform(self, event())
