"""Who should hold which member's record: the one rule by which consumers share members (C9).

Nobody decides for others. Each consumer looks at who holds what and who waits, and asks for what it lacks; the owner
hands over whatever is asked for at its next boundary. The rule for asking:

    needed members (an open claim to acknowledge there)        always
    free members                                               always
    a consumer with a selector                                 every member, in turn: only it can take its messages
    fewer than members // consumers                            so many more, from those who have most
    nothing at all, more consumers than members                one, where fewest wait
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
    """Who shares these members, as far as can be seen: holders, waiters and the one who looks."""
    return {h for h in holders.values() if h} | {w for queue in waiters.values() for w in queue} | {me}
