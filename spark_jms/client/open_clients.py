"""The producers, or the consumers, of one context: those that are open, and what the closed ones have counted.

Features: T17, M5 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from spark_jms.core.destination import is_temporary

_TEMPORARY = "(temporary)"


class Counting(Protocol):
    """A producer or a consumer."""

    @property
    def destination(self) -> str: ...

    def statistics(self) -> Any: ...


C = TypeVar("C", bound=Counting)


class CountedField(NamedTuple):
    """A count in the statistics of the producers, or consumers, of one destination, as `counted_as` names it."""

    destination: str
    field: str


class OpenClients(Generic[C]):
    """Thread-safe. `counts` names the fields of their statistics that only grow; these are kept when one closes."""

    def __init__(self, counts: Sequence[str]) -> None:
        self._lock, self._counts = threading.Lock(), tuple(counts)
        self._open: list[C] = []
        self._closed: Counter[CountedField] = Counter()
        self.high = self.total = 0

    def add(self, one: C) -> C:
        with self._lock:
            self._open.append(one)
            self.high, self.total = max(self.high, len(self._open)), self.total + 1
        return one

    def remove(self, one: C) -> None:
        """It is closed, and counts no more."""
        with self._lock:
            if one in self._open:
                self._open.remove(one)
                self._closed.update(self._of(one))

    def all(self) -> list[C]:
        with self._lock:
            return list(self._open)

    def counted(self) -> Counter[CountedField]:
        """Of the open ones and of those that were closed."""
        with self._lock:
            found = Counter(self._closed)
            for one in self._open:
                found.update(self._of(one))
        return found

    def reset(self) -> None:
        """The high mark begins with what is open now, and the total at 0."""
        with self._lock:
            self.high, self.total = len(self._open), 0

    def __len__(self) -> int:
        return len(self._open)

    def _of(self, one: C) -> dict[CountedField, int]:
        now = one.statistics()
        return {CountedField(counted_as(one.destination), name): getattr(now, name) for name in self._counts}


def counted_as(destination: str) -> str:
    """All temporary destinations are counted together: they come and go, and their names are never used again."""
    return _TEMPORARY if is_temporary(destination) else destination
