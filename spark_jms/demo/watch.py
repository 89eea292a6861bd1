"""Observes the queue from outside: depth over time, and which consumer has claimed which messages."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

from spark_jms.claims import views
from spark_jms.claims.stores import open_stores
from spark_jms.core.ranges import Ranges
from spark_jms.errors import JmsqError
from spark_jms.log.domain import Domain
from spark_jms.store import StoreError

EVERY_S = 0.5


@dataclass(frozen=True)
class OpenClaim:
    """Messages of one member that a consumer has claimed."""

    member: int
    consumer: str
    picks: Ranges


@dataclass(frozen=True)
class DepthSample:
    """The destination at one moment. `backlog` counts unacknowledged messages."""

    second: float
    sent: int
    backlog: int
    claims: tuple[OpenClaim, ...]

    def members_of(self, consumer: str) -> list[int]:
        return sorted({claim.member for claim in self.claims if claim.consumer == consumer})


class Watch:
    """Samples a queue twice a second in a thread, read-only. `check()` raises the thread's error. Who waits for something asks
    `look()`: a sample may be late, or miss what lasted a moment."""

    def __init__(self, root: Path, destination: str) -> None:
        self.samples: list[DepthSample] = []
        self.marks: list[tuple[float, str]] = []
        self._domain, self._destination = Domain(str(root)), destination
        self._store = open_stores(self._domain)
        self._started_s = time.monotonic()
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="demo watch", daemon=True)
        self._thread.start()

    @property
    def second(self) -> float:
        return time.monotonic() - self._started_s

    @property
    def last(self) -> DepthSample:
        return self.samples[-1] if self.samples else DepthSample(0.0, 0, 0, ())

    def mark(self, what: str) -> None:
        self.marks.append((self.second, what))

    def check(self) -> None:
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._store.close()

    def look(self) -> DepthSample:
        """The log and the records as they are now. Raises JmsqError and OSError."""
        states = views.states(self._domain, self._store, self._destination, None)
        snapshot = self._domain.log(self._destination).snapshot
        last = {member: snapshot.last_sequence(member) for member in states}
        claims = tuple(
            OpenClaim(member, claim.consumer, claim.picks)
            for member, state in states.items()
            for claim in state.claims.values()
        )
        backlog = sum(state.unfinished(1, last[member]).count for member, state in states.items())
        return DepthSample(self.second, sum(last.values()), backlog, claims)

    def _loop(self) -> None:
        while not self._stop.wait(EVERY_S):
            try:
                self.samples.append(self.look())
            except (JmsqError, StoreError, OSError) as error:  # check() raises it in the demo's own thread
                self._error = error
                return
