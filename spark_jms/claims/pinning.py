"""Pins a new receiver or browser of a distributed queue to one of its members. core/pinning.py has the rules.

Features: D3 (docs/FEATURES.md)
"""

from __future__ import annotations

import random

from spark_jms.claims.member_consumers import ask_members
from spark_jms.core.destination import Destination
from spark_jms.core.pinning import Reachable, chosen
from spark_jms.errors import MemberUnavailableError, OptionError
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store


def check_pinning(declared: Destination) -> None:
    """Raises OptionError for a topic: its subscriptions are not in one member."""
    if declared.is_topic:
        raise OptionError(f"{declared.name} is a {declared.kind}: pin is for queues; leave it out")


def pinned_member(store: Store, snapshot: Snapshot, home: str | None = None, *, receives: bool = True) -> Reachable:
    """The member for a new receiver, or for a browser. Raises MemberUnavailableError, which names the servers, when none can
    be reached."""
    check_pinning(snapshot.destination)
    asked = ask_members(store, snapshot)
    reachable = [Reachable(one.member, one.server, one.consumers if receives else 0) for one in asked.members]
    if not reachable:
        reasons = "; ".join(f"server {server}: {why}" for server, why in asked.unreachable.items())
        raise MemberUnavailableError(
            f"no member of {snapshot.destination.name} can be reached, so there is none to pin to: {reasons}. Try again later"
        )
    return chosen(reachable, home, random.randrange(2**31))
