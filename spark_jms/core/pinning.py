"""To which member of a distributed queue a new receiver or browser is pinned. Pure.

Each rule narrows what the one above has left, unless it would leave nothing:

    members that can be reached
    those on the home server of the connection, with affinity; a browser has none
    those without consumers, for a receiver
    one of them by chance

Features: D3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Reachable:
    """A member whose server answers. `consumers`: how many hold its record or wait for it."""

    member: int
    server: str
    consumers: int = 0


def chosen(members: Sequence[Reachable], home: str | None, chance: int) -> Reachable:
    """`chance` is any number of 0 or more. `members` are not empty."""
    at_home = [one for one in members if one.server == home] or list(members)
    free = [one for one in at_home if not one.consumers] or at_home
    return free[chance % len(free)]
