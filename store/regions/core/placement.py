"""Which daemon gets a copy. Pure functions of the candidates.

Features: R4, R9, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SERVICE = "service "  # begins the name of a client that is part of a daemon: it closes its regions when that one leaves


@dataclass(frozen=True)
class Candidate:
    """A running daemon, according to its heartbeat."""

    index: int
    free_bytes: int
    draining: bool = False


class HeldCopies(NamedTuple):
    """The copies of one region, and the daemons that hold them."""

    size: int
    holders: tuple[int, ...]


def next_daemon(
    after: int, count: int, candidates: Mapping[int, Candidate], size: int, exclude: Collection[int] = ()
) -> int | None:
    """The next candidate after `after`, in the order of rs_daemons.cfg and wrapping, that is not leaving and has room."""
    for step in range(1, count):
        index = (after + step) % count
        candidate = candidates.get(index)
        if candidate and index not in exclude and not candidate.draining and candidate.free_bytes >= size:
            return index
    return None


def with_room(candidates: Mapping[int, Candidate], index: int, size: int) -> Mapping[int, Candidate]:
    """The candidates, counting as free what a copy on daemon `index` takes there now."""
    held = candidates.get(index)
    if held is None:
        return candidates
    return {**candidates, index: Candidate(index, held.free_bytes + size, held.draining)}


def refusal_to_leave(
    leaving: Collection[int],
    copies: Mapping[str, HeldCopies],
    openers: Mapping[str, str],
    candidates: Mapping[int, Candidate],
) -> str:
    """Steps 1 and 2 of an orderly stop: why these daemons may not leave safely; empty: they may. `copies` and
    `openers` are by region name."""
    held = {name: region for name, region in copies.items() if not set(leaving).isdisjoint(region.holders)}
    for name in held:
        if not openers.get(name, SERVICE).startswith(SERVICE):
            return f"region {name} is open, by {openers[name]}"
    if not held or fits_without(leaving, held, candidates):
        return ""
    staying = candidates.keys() - set(leaving)
    if len(staying) < 2:
        left = f"{len(staying)} daemon" if staying else "no daemon"
        return f"{left} would be left, and {len(held)} region(s) need two"
    return f"not enough memory on the other daemons to resilver {len(held)} region(s)"


def fits_without(
    leaving: Collection[int], copies: Mapping[str, HeldCopies], candidates: Mapping[int, Candidate]
) -> bool:
    """Step 2: whether every copy on the leaving daemons has room on another one. `copies` is by region name."""
    return not without_room(leaving, copies, candidates)


def without_room(
    leaving: Collection[int], copies: Mapping[str, HeldCopies], candidates: Mapping[int, Candidate]
) -> list[str]:
    """The regions, the largest first, for whose copies on the leaving daemons no other one has room."""
    homeless: list[str] = []
    free = {index: c.free_bytes for index, c in candidates.items() if index not in leaving and not c.draining}
    for name, region in sorted(copies.items(), key=lambda item: (item[1], item[0]), reverse=True):
        stay = [index for index in region.holders if index not in leaving]
        for _ in range(len(region.holders) - len(stay)):
            room = [index for index in free if index not in stay and free[index] >= region.size]
            if not room:
                homeless.append(name)
                break
            best = max(room, key=lambda index: (free[index], -index))
            free[best] -= region.size
            stay.append(best)
    return homeless
