"""Whether a region's second copy should be on another daemon than it is. Pure.

Theory. The second copy belongs on the next daemon with room after the primary's. It is moved there only after a client has
opened the region, so that daemons which come and go move no copies of regions that are not used. Until a copy has joined,
or is found on the next daemon already, the next daemon is SOUGHT.

Features: R9 (docs/FEATURES.md)
"""

from __future__ import annotations

from enum import Enum

from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class SecondPlace(Enum):
    ACCEPTED = "accepted"
    SOUGHT = "sought"


class SecondPlaceEvent(Enum):
    SERVED = "the directory names this daemon primary"
    OPENED = "a client has opened the region"
    JOINED = "the directory lists a copy that was made for it"
    IN_PLACE = "the second copy is on the next daemon"


_ACCEPTED, _SOUGHT = SecondPlace
_MOVES = "makes a copy on the next daemon, as soon as one has room"

SECOND_PLACE_STATES = StateTable(
    StateTransition(None, SecondPlaceEvent.SERVED, _ACCEPTED, "the second copy stays where it is"),
    *(StateTransition(state, SecondPlaceEvent.OPENED, _SOUGHT, _MOVES) for state in SecondPlace),
    *(
        StateTransition(state, SecondPlaceEvent.JOINED, _ACCEPTED, "the other copy is given up")
        for state in SecondPlace
    ),
    *(StateTransition(state, SecondPlaceEvent.IN_PLACE, _ACCEPTED, "nothing") for state in SecondPlace),
)
