"""Two state tables of a region that a daemon serves: whether it is primary, as far as it knows, and who has it open. Pure.

Theory. The directory names the primary, and this daemon hears of it in two ways: its own changes of the entry are made or
not, and it reads the entry. At most one change is under way. A doubt that arises meanwhile lasts beyond the change: whatever
was read before its answer is older than the change, and the change may have been made before the reason for the doubt.

A client has the region open while the directory names it as the opener. An opening without an answer may have happened: it is
closed like a region that its client has left, and the request to open tries again.

Features: R8, R9, R10, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from spark_jms.store.state_table import StateTable, StateTransition

# -- whether this daemon is primary ------------------------------------------------------------------------------------


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


# -- who has the region open -------------------------------------------------------------------------------------------


class UseState(Enum):
    CLOSED = "closed"
    OPENING = "opening"
    OPEN = "open"
    CLOSING = "closing"


class UseEvent(Enum):
    ASKED = "a client wants to open it"
    OPENED = "the directory names the client as its opener"
    UNCHANGED = "the directory did not answer, or refused"
    LEFT = "its client closes it, or is away"
    CLOSED = "the directory names no opener"
    ENDED = "this daemon does not serve it any more"


_CLOSED, _OPENING, _OPEN, _CLOSING = UseState
_ANSWERS = "answers the client that closes it"

USE_STATES = StateTable(
    StateTransition(None, UseEvent.CLOSED, _CLOSED, "nothing"),
    StateTransition(None, UseEvent.LEFT, _CLOSING, "asks the directory"),
    StateTransition(_CLOSED, UseEvent.ASKED, _OPENING, "asks the directory"),
    StateTransition(_OPENING, UseEvent.OPENED, _OPEN, "the client may read and write"),
    StateTransition(_OPENING, UseEvent.UNCHANGED, _CLOSING, "asks the directory, if that names the client after all"),
    StateTransition(_OPEN, UseEvent.LEFT, _CLOSING, "asks the directory"),
    StateTransition(_CLOSING, UseEvent.CLOSED, _CLOSED, _ANSWERS),
    StateTransition(_CLOSED, UseEvent.ENDED, _CLOSED, "nothing"),
    StateTransition(_OPENING, UseEvent.ENDED, _CLOSED, "the request to open tries again"),
    StateTransition(_OPEN, UseEvent.ENDED, _CLOSED, "Revoked"),
    StateTransition(_CLOSING, UseEvent.ENDED, _CLOSED, _ANSWERS),
)


class RegionUse:
    """Who has a region open that this daemon serves. `client` has it open; None unless OPEN. `epoch` is that of the last
    opening, 0 before the first."""

    def __init__(self, opener: str | None) -> None:
        self.state: UseState | None = None
        self.client: int | None = None
        self.epoch = 0
        self._asking = -1  # the client, while OPENING
        self._then: Callable[[], None] = _nothing  # called when it is open, or closed
        self._step(UseEvent.CLOSED if opener is None else UseEvent.LEFT)

    def _step(self, event: UseEvent) -> None:
        self.state = USE_STATES.next(self.state, event)

    @property
    def closing(self) -> bool:
        return self.state is _CLOSING

    def ask(self, client: int, then: Callable[[], None]) -> None:
        self._step(UseEvent.ASKED)
        self._asking, self._then = client, then

    def opened(self, epoch: int) -> None:
        self._step(UseEvent.OPENED)
        self.client, self.epoch = self._asking, epoch
        self._tell()

    def unchanged(self) -> None:
        """A change of the region's entry was not made, perhaps the opening."""
        if self.state is _OPENING:
            self._step(UseEvent.UNCHANGED)
            self._then = _nothing

    def leave(self, then: Callable[[], None]) -> None:
        self._step(UseEvent.LEFT)
        self.client, self._then = None, then

    def closed(self) -> None:
        self._step(UseEvent.CLOSED)
        self._tell()

    def end(self) -> int | None:
        """The client that had it open."""
        client, self.client = self.client, None
        then, self._then = self._then if self.closing else _nothing, _nothing
        self._step(UseEvent.ENDED)
        then()
        return client

    def _tell(self) -> None:
        then, self._then = self._then, _nothing
        then()


def _nothing() -> None:
    pass
