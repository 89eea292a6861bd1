"""How long things take: steadily for tests that go step by step, at random for a seed."""

from __future__ import annotations

import random
import zlib
from math import log

TICK_MS = 50.0
PEER_RATE, CLIENT_RATE, DIRECTORY_RATE = 1 / 0.8, 1 / 0.3, 1 / 0.5  # by the ms, of random delays


class Timing:
    """Steady: a tick every 50 ms, messages arrive at once and in order, a stopped daemon stays down."""

    def clock_offset_ms(self) -> float:
        """How far a daemon's own clock is ahead of the simulated one."""
        return 0.0

    def clock_rate(self) -> float:
        """How fast a daemon's own clock goes."""
        return 1.0

    def first_tick_ms(self) -> float:
        return TICK_MS

    def tick_ms(self) -> float:
        return TICK_MS

    def peer_delay_ms(self) -> float:
        return 0.0

    def client_delay_ms(self) -> float:
        return 0.0

    def directory_delay_ms(self) -> float:
        """How long a request to the Global Directory takes, and how long its answer."""
        return 0.0

    def delivers_after_cut(self) -> bool:
        """Whether the daemon still receives what a client sent before its connection was cut."""
        return True

    def arrives_after_death(self) -> bool:
        """Whether the other daemons still receive what a daemon sent before it died."""
        return False

    def restart_ms(self) -> float | None:
        """After how long a daemon that stopped starts again; None: it stays down."""
        return None

    def memory_asks(self, region_id: str) -> int:
        """How often a daemon asks for the memory of this region in vain."""
        return 0


class RandomTiming(Timing):
    """Everything drawn from the seed."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._random = chance.random

    def clock_offset_ms(self) -> float:
        return self._chance.choice((0.0, 5.0, 1e6, 3e9))

    def clock_rate(self) -> float:
        """A hundred times worse than real ones."""
        return self._chance.uniform(0.97, 1.03)

    def first_tick_ms(self) -> float:
        return self._chance.uniform(0, TICK_MS)

    def tick_ms(self) -> float:
        return self._chance.uniform(TICK_MS * 0.5, TICK_MS * 2.0)

    def peer_delay_ms(self) -> float:
        return -log(1.0 - self._random()) / PEER_RATE + 0.05

    def client_delay_ms(self) -> float:
        return -log(1.0 - self._random()) / CLIENT_RATE

    def directory_delay_ms(self) -> float:
        return -log(1.0 - self._random()) / DIRECTORY_RATE

    def delivers_after_cut(self) -> bool:
        return self._chance.random() < 0.5

    def arrives_after_death(self) -> bool:
        return self._chance.random() < 0.5

    def restart_ms(self) -> float:
        return self._chance.uniform(500, 3000)

    def memory_asks(self, region_id: str) -> int:
        """Not drawn from the seed: a change here leaves everything else of a seed as it is."""
        return (0, 0, 0, 2, 8)[zlib.crc32(region_id.encode()) % 5]
