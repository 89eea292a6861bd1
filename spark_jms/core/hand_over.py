"""How consumers share members: which records a consumer asks for.

No consumer decides for another. Each one looks at the holders and waiters and asks for the records it lacks; an owner
hands every requested record over at its next boundary. A consumer asks for:

    members that it needs, to acknowledge an open claim there     always
    free members                                                  always
    every member, in turn                                         with a selector: only it can take its messages
    as many as it has fewer than members // consumers             from the consumers that hold most
    one, where the fewest wait                                    if it holds none, with more consumers than members

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set


def wanted(
    me: str,
    holders: Mapping[int, str | None],
    waiters: Mapping[int, tuple[str, ...]],
    *,
    visits_all: bool,
    needed: Set[int],
) -> list[int]:
    """The members to ask for, most urgent first. `holders` maps every member to the session that holds it, or None."""
    mine = {m for m, holder in holders.items() if holder == me}
    out = [m for m in sorted(holders) if m in needed and m not in mine]
    out += [m for m in sorted(holders) if holders[m] is None and m not in out]
    if visits_all:
        return out + [m for m in sorted(holders) if m not in mine and m not in out]
    consumers = consumers_of(me, holders, waiters)
    already = {m for m, queue in waiters.items() if me in queue}
    lacking = len(holders) // len(consumers) - len(mine | set(out) | already)
    held = Counter(h for h in holders.values() if h and h != me)
    candidates = [m for m in sorted(holders) if m not in mine and m not in out and m not in already]
    for _ in range(max(lacking, 0)):
        best = max(candidates, key=lambda m: (held[holders[m] or ""], -len(waiters.get(m, ())), m), default=None)
        if best is None:
            break
        candidates.remove(best)
        held[holders[best] or ""] -= 1
        out.append(best)
    if not mine and not out and not already and candidates:
        out.append(min(candidates, key=lambda m: (len(waiters.get(m, ())), m)))
    return out + [m for m in sorted(already) if m not in out and m not in mine]


def consumers_of(me: str, holders: Mapping[int, str | None], waiters: Mapping[int, tuple[str, ...]]) -> set[str]:
    """The sessions that share these members: holders, waiters and `me`."""
    return {h for h in holders.values() if h} | {w for queue in waiters.values() for w in queue} | {me}
