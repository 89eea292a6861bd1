"""Whether a region's second copy should be on another daemon than it is, and on which. Pure.

Theory. The second copy belongs on the next daemon with room after the primary's. It is moved there only after a client has
opened the region, so that daemons which come and go move no copies of regions that are not used. Until a copy has joined,
or is found on the next daemon already, the next daemon is SOUGHT.

Features: R9 (docs/FEATURES.md)
"""

from __future__ import annotations

from enum import Enum

from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.peers import Peers
from spark_jms.store.regions.core.placement import next_daemon, with_room
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class SecondPlaceState(Enum):
    ACCEPTED = "accepted"
    SOUGHT = "sought"


class SecondPlaceEvent(Enum):
    SERVED = "the directory names this daemon primary"
    OPENED = "a client has opened the region"
    JOINED = "the directory lists a copy that was made for it"
    IN_PLACE = "the second copy is on the next daemon"


_ACCEPTED, _SOUGHT = SecondPlaceState
_MOVES = "makes a copy on the next daemon, as soon as one has room"

SECOND_PLACE_STATES = StateTable(
    StateTransition(None, SecondPlaceEvent.SERVED, _ACCEPTED, "the second copy stays where it is"),
    *(StateTransition(state, SecondPlaceEvent.OPENED, _SOUGHT, _MOVES) for state in SecondPlaceState),
    *(
        StateTransition(state, SecondPlaceEvent.JOINED, _ACCEPTED, "the other copy is given up")
        for state in SecondPlaceState
    ),
    *(StateTransition(state, SecondPlaceEvent.IN_PLACE, _ACCEPTED, "nothing") for state in SecondPlaceState),
)


class SecondPlace:
    def __init__(self) -> None:
        self.state: SecondPlaceState | None = None
        self._declined: set[int] = set()  # daemons that had no memory when asked
        self.step(SecondPlaceEvent.SERVED)

    def step(self, event: SecondPlaceEvent) -> None:
        self.state = SECOND_PLACE_STATES.next(self.state, event)

    def decline(self, daemon: int) -> None:
        self._declined.add(daemon)

    def seek(self, entry: RegionEntry, peers: Peers) -> Holder | None:
        """Where another second copy should be made now."""
        secondary, size = entry.secondary, entry.size
        leaves = secondary is not None and peers.is_draining(secondary.daemon)
        if secondary is not None and not leaves and self.state is _ACCEPTED:
            return None
        candidates, exclude = peers.candidates(), set(self._declined)
        if secondary is not None:
            candidates = with_room(candidates, secondary.daemon, size)
            exclude |= {secondary.daemon} if leaves else set()
        target = next_daemon(peers.me.daemon, peers.count, candidates, size, exclude)
        if target is not None and (secondary is None or target != secondary.daemon):
            return peers.holder_of(target)
        if target is not None:
            self.step(SecondPlaceEvent.IN_PLACE)
        self._declined.clear()
        return None
