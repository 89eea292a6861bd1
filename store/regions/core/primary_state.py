"""Whether this daemon is the primary of a region, as far as it knows. Pure.

Theory. The directory names the primary, and this daemon hears of it in two ways: its own changes of the entry are made or
not, and it reads the entry. At most one change is under way. A doubt that arises meanwhile lasts beyond the change: whatever
was read before its answer is older than the change, and the change may have been made before the reason for the doubt.

Features: R8, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class PrimaryState(Enum):
    SERVING = "serving"
    CHANGING = "changing"
    CHANGING_IN_DOUBT = "changing, in doubt"
    IN_DOUBT = "in doubt"
    DEMOTED = "demoted"
    FENCED = "fenced"
    REMOVED = "removed"


class PrimaryEvent(Enum):
    NAMED = "the directory names this daemon"
    ASKED = "its entry has to change"
    CHANGED = "the directory has made the change"
    UNCHANGED = "no answer to the change, or refused"
    DOUBTED = "another daemon may have taken over"
    CONFIRMED = "a read still names this daemon"
    DEMOTED = "the region moved to its other copy"
    FENCED = "another daemon took over"
    REMOVED = "the region was removed"


_SERVING, _CHANGING, _CHANGING_IN_DOUBT, _IN_DOUBT, *_ENDS = PrimaryState
_LIVING = (_SERVING, _CHANGING, _CHANGING_IN_DOUBT, _IN_DOUBT)
_ADOPTS = "adopts the entry, answers the requests it holds"
_READS = "reads the entry on every tick"
_OLDER = "nothing: the change tells more"
_FREES = "fails the requests it holds, frees the copy"

PRIMARY_STATES = StateTable(
    StateTransition(None, PrimaryEvent.NAMED, _SERVING, "adopts the entry"),
    StateTransition(_SERVING, PrimaryEvent.ASKED, _CHANGING, "asks the directory"),
    StateTransition(_CHANGING, PrimaryEvent.CHANGED, _SERVING, _ADOPTS),
    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CHANGED, _IN_DOUBT, "adopts the entry, and reads it again"),
    StateTransition(_CHANGING, PrimaryEvent.UNCHANGED, _IN_DOUBT, _READS),
    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.UNCHANGED, _IN_DOUBT, _READS),
    StateTransition(_SERVING, PrimaryEvent.DOUBTED, _IN_DOUBT, _READS),
    StateTransition(_CHANGING, PrimaryEvent.DOUBTED, _CHANGING_IN_DOUBT, "waits for the change"),
    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.DOUBTED, _CHANGING_IN_DOUBT, "nothing"),
    StateTransition(_IN_DOUBT, PrimaryEvent.DOUBTED, _IN_DOUBT, "nothing"),
    StateTransition(_SERVING, PrimaryEvent.CONFIRMED, _SERVING, _ADOPTS),
    StateTransition(_CHANGING, PrimaryEvent.CONFIRMED, _CHANGING, _OLDER),
    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CONFIRMED, _CHANGING_IN_DOUBT, _OLDER),
    StateTransition(_IN_DOUBT, PrimaryEvent.CONFIRMED, _SERVING, _ADOPTS),
    *(
        StateTransition(state, PrimaryEvent.DEMOTED, PrimaryState.DEMOTED, "the copy follows the new primary")
        for state in _LIVING
    ),
    *(StateTransition(state, PrimaryEvent.FENCED, PrimaryState.FENCED, _FREES) for state in _LIVING),
    *(StateTransition(state, PrimaryEvent.REMOVED, PrimaryState.REMOVED, _FREES) for state in _LIVING),
)
ENDS = frozenset(_ENDS)
CHANGES = frozenset((_CHANGING, _CHANGING_IN_DOUBT))


@dataclass(frozen=True)
class Answer:
    """Of the directory, to a read or a change. `covers`: requests up to this one came before the question. `entry`: what the
    directory has now, if it is `known`. `then` follows the change that was made; None: it answers a read."""

    covers: int
    known: bool
    entry: RegionEntry | None
    then: Callable[[], None] | None = None

    def means(self, me: Holder, region_id: str) -> PrimaryEvent | None:
        """To the daemon that was primary of this region. None: nothing."""
        if not self.known:
            return None if self.then is None else PrimaryEvent.UNCHANGED
        if self.entry is None or self.entry.is_destroyed:
            return PrimaryEvent.REMOVED
        if self.entry.region_id == region_id and self.entry.primary == me:
            return PrimaryEvent.CONFIRMED if self.then is None else PrimaryEvent.CHANGED
        if self.entry.region_id == region_id and self.entry.secondary == me:
            return PrimaryEvent.DEMOTED  # only its own move makes a primary the secondary
        return PrimaryEvent.FENCED
