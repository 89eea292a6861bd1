"""How many consumers the members of a queue have now, server by server. Only reads.

Features: D3, D5 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from spark_jms.claims.lane import ServerAwayError, ask_once
from spark_jms.claims.record_sets import state_of
from spark_jms.claims.stores import prefix_of, record_of, store_of
from spark_jms.core.destination import QUEUE_SUBSCRIPTION
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.core.record_set import RecordSet
from spark_jms.log.snapshot import Snapshot
from spark_jms.store import Store

ANSWER_S = 2.0
# In the label of a consumer's session, not in that of a command or of housekeeping.
_OF_A_QUEUE = f"/{QUEUE_SUBSCRIPTION} "


@dataclass(frozen=True)
class AskedMember:
    """`consumers`: live sessions that hold the member's record, wait for it or have taken messages from it. `left_behind`: what
    dead sessions have claimed there."""

    member: int
    server: str
    consumers: int
    state: RecordSet
    left_behind: Ranges = EMPTY


@dataclass(frozen=True)
class AskedMembers:
    """`unreachable`: server -> why its members were not asked."""

    members: tuple[AskedMember, ...] = ()
    unreachable: dict[str, str] = field(default_factory=dict)


def ask_members(store: Store, snapshot: Snapshot) -> AskedMembers:
    """Those of servers that are up and answer within ANSWER_S."""
    found: list[AskedMember] = []
    unreachable: dict[str, str] = {}
    for server in snapshot.destination.servers_in_use():
        if server in snapshot.destination.down:
            unreachable[server] = "it is down"
            continue
        try:
            found += ask_once(server, partial(_asked, store, snapshot, server), ANSWER_S)
        except ServerAwayError as error:
            unreachable[server] = str(error)
    return AskedMembers(tuple(found), unreachable)


def _asked(store: Store, snapshot: Snapshot, server: str) -> list[AskedMember]:
    infos = store.infos(prefix_of(snapshot, QUEUE_SUBSCRIPTION, server))
    sessions = store_of(store, server).sessions()
    live = {id for id, session in sessions.items() if _OF_A_QUEUE in session.label}
    found = []
    for member in snapshot.destination.members_on(server):
        state = state_of(store, snapshot, QUEUE_SUBSCRIPTION, member)
        info = infos.get(record_of(snapshot, QUEUE_SUBSCRIPTION, member))
        near = {info.holder, *info.waiters} if info is not None else set()
        consumers = len(live & {*near, *state.consumers.values()})
        dead = union(claim.picks for claim in state.claims.values() if claim.session not in sessions)
        found.append(AskedMember(member, server, consumers, state, dead))
    return found
