"""Who has a region open that this daemon serves. Pure.

Theory. A client has the region open while the directory names it as the opener. An opening without an answer may have
happened: it is closed like a region that its client has left, and the request to open tries again.

Features: R9, R15 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from spark_jms.store.regions.core.state_table import StateTable, StateTransition


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


def _nothing() -> None:
    pass


class RegionUse:
    """`client` has it open; None unless OPEN. `epoch` is that of the last opening, 0 before the first."""

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
