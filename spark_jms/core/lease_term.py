"""The terms of a server's lease: the times during which it is held, and those during which it has lapsed.

Terms are counted for each server, from 1, and each follows another in the domain by a file that only one process can create
(log/server_leases.py). A destination's table has the newest term that it knows. A table never goes back to an earlier term, so
processes that commit terms late, twice or in the wrong order leave every table at the newest one.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LeaseTerm:
    """`lapsed_ms`: since when the lease has lapsed; None: it is held."""

    number: int = 0
    lapsed_ms: int | None = None

    def next(self, lapsed_ms: int | None) -> LeaseTerm:
        return LeaseTerm(self.number + 1, lapsed_ms)

    def to_json(self) -> dict[str, Any]:
        return {"term": self.number, **({} if self.lapsed_ms is None else {"lapsedMs": self.lapsed_ms})}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> LeaseTerm:
        """Raises KeyError, TypeError or ValueError."""
        lapsed = stored.get("lapsedMs")
        return LeaseTerm(int(stored["term"]), None if lapsed is None else int(lapsed))


HELD = LeaseTerm()  # of a server whose lease never lapsed
