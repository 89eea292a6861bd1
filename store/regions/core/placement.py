"""Which daemon holds a copy (R9, R10). Pure: a candidate list in, a daemon number out."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A running daemon as its heartbeat tells it."""

    index: int
    free_bytes: int
    draining: bool = False


def next_daemon(
    after: int, count: int, candidates: Mapping[int, Candidate], size: int, exclude: Collection[int] = ()
) -> int | None:
    """The nearest one after `after` in the order of rs_daemons.cfg, wrapping, that runs, stays and has room."""
    for step in range(1, count):
        index = (after + step) % count
        candidate = candidates.get(index)
        if candidate and index not in exclude and not candidate.draining and candidate.free_bytes >= size:
            return index
    return None


def fits_without(
    leaving: Collection[int], copies: Mapping[str, tuple[int, tuple[int, ...]]], candidates: Mapping[int, Candidate]
) -> bool:
    """R4, step 2: whether every copy on the leaving daemons finds room on another one. copies: name -> (size, holders)"""
    free = {index: c.free_bytes for index, c in candidates.items() if index not in leaving and not c.draining}
    for size, holders in sorted(copies.values(), reverse=True):
        stay = [index for index in holders if index not in leaving]
        for _ in range(len(holders) - len(stay)):
            room = [index for index in free if index not in stay and free[index] >= size]
            if not room:
                return False
            best = max(room, key=lambda index: (free[index], -index))
            free[best] -= size
            stay.append(best)
    return True
