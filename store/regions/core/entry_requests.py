"""What one daemon has asked the Global Directory about one region. Pure.

Theory. The directory answers after milliseconds, after minutes, or never, and the daemon serves its other regions
meanwhile. At most one request per region is on its way, so answers arrive in the order of their requests. A question gets
the answer of a read that began after the question: an older read may have seen an older entry.

A change that failed may have happened, may not have happened, or may still happen: the request may be on its way to a file
server after its sender gave up or died. Reading the old entry therefore proves nothing. But a change is a compare-and-swap
on the entry's epoch, so this daemon can make it impossible by raising the epoch itself (RENEWED).

    the directory now has          conclusion and next step
    another entry than before      this change or another one has happened: the doubt is resolved
    the old entry                  write RENEWED; once that is answered, the change can no longer happen
    the old entry, at epoch 1      no store has opened the region; the one that opens it raises the epoch
    nothing, as before             the region may still appear: the daemon that made it deletes it if it has no copy

Features: R8, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import ChangeEntry, DirectoryRequest, ReadEntry, RegionEntry
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class RequestState(Enum):
    READING = "reading"
    CHANGING = "changing"
    DOUBTFUL = "doubtful"
    RESOLVING = "resolving"
    RENEWING = "renewing"


class RequestEvent(Enum):
    ASKED = "the entry is wanted"
    CHANGED = "a change is wanted"
    ANSWERED = "the directory answers"
    FAILED = "the directory fails"
    STILL = "it answers with the old entry"


REQUEST_STATES = StateTable(
    StateTransition(None, RequestEvent.ASKED, RequestState.READING, "reads the entry"),
    StateTransition(None, RequestEvent.CHANGED, RequestState.CHANGING, "writes the change"),
    StateTransition(RequestState.READING, RequestEvent.ANSWERED, None, "answers the questions"),
    StateTransition(RequestState.READING, RequestEvent.FAILED, None, "the questions have no answer"),
    StateTransition(RequestState.CHANGING, RequestEvent.ANSWERED, None, "the change is done or refused"),
    StateTransition(RequestState.CHANGING, RequestEvent.FAILED, RequestState.DOUBTFUL, "its outcome is unknown"),
    StateTransition(RequestState.DOUBTFUL, RequestEvent.ASKED, RequestState.RESOLVING, "reads the entry"),
    StateTransition(RequestState.RESOLVING, RequestEvent.ANSWERED, None, "answers the questions"),
    StateTransition(RequestState.RESOLVING, RequestEvent.FAILED, RequestState.DOUBTFUL, "the questions have no answer"),
    StateTransition(RequestState.RESOLVING, RequestEvent.STILL, RequestState.RENEWING, "writes RENEWED"),
    StateTransition(RequestState.RENEWING, RequestEvent.ANSWERED, None, "answers the questions"),
    StateTransition(
        RequestState.RENEWING, RequestEvent.STILL, RequestState.RESOLVING, "refused: reads the entry again"
    ),
    StateTransition(RequestState.RENEWING, RequestEvent.FAILED, RequestState.DOUBTFUL, "the questions have no answer"),
)


class Outcome(Enum):
    DONE = "done"
    REFUSED = "the directory has another entry"
    UNKNOWN = "not answered"


@dataclass(frozen=True)
class Seen:
    """The answer to a question: the entry, or `error` when it is not known."""

    entry: RegionEntry | None
    error: DirectoryUnavailableError | None = None

    @property
    def known(self) -> bool:
        return self.error is None


Look = Callable[[Seen], None]
Changed = Callable[[Outcome], None]


@dataclass(frozen=True)
class WantedChange:
    request: ChangeEntry
    then: Changed


class EntryRequests:
    """`ask` sends a request. Its answer comes back through `answered` or `failed`."""

    def __init__(self, name: str, ask: Callable[[DirectoryRequest], None]) -> None:
        self.state: RequestState | None = None
        self._name = name
        self._ask = ask
        self._asked: dict[object, Look] = {}  # questions that the request under way answers
        self._next: dict[object, Look] = {}  # questions that came after it
        self._change: WantedChange | None = None  # waits for a read, is under way, or has no answer
        self._renewed: RegionEntry | None = None

    @property
    def idle(self) -> bool:
        return self.state is None and not self._next and self._change is None

    @property
    def changing(self) -> ChangeEntry | None:
        """The change that is under way or has no answer."""
        begun = self._change is not None and self.state not in (None, RequestState.READING)
        return self._change.request if begun and self._change is not None else None

    def _step(self, event: RequestEvent) -> None:
        self.state = REQUEST_STATES.next(self.state, event)

    # ---- questions and changes

    def look(self, key: object, then: Look) -> None:
        """A second question with the same key replaces the first, unless a request to answer that is under way."""
        self._next[key] = then
        self._begin()

    def change(self, old: RegionEntry | None, new: RegionEntry | None, then: Changed) -> None:
        """Refused while another change of this region has no answer."""
        if self._change is not None:
            then(Outcome.REFUSED)
            return
        self._change = WantedChange(ChangeEntry(self._name, old, new), then)
        self._begin()

    def _begin(self) -> None:
        if self.state is None and self._change is not None:
            self._step(RequestEvent.CHANGED)
            self._ask(self._change.request)
        elif self.state in (None, RequestState.DOUBTFUL) and self._next:
            self._step(RequestEvent.ASKED)
            self._asked, self._next = self._next, {}
            self._ask(ReadEntry(self._name))

    # ---- answers

    def failed(self, error: DirectoryUnavailableError) -> None:
        before, change = self.state, self._change
        self._step(RequestEvent.FAILED)
        if before is RequestState.CHANGING:
            assert change is not None
            change.then(Outcome.UNKNOWN)
            self._begin()
        else:
            self._tell(Seen(None, error))

    def swapped(self, done: bool) -> None:
        if self.state is RequestState.CHANGING:
            change, self._change = self._change, None
            assert change is not None
            self._step(RequestEvent.ANSWERED)
            change.then(Outcome.DONE if done else Outcome.REFUSED)
            self._begin()
        elif done:
            self._resolved(self._renewed)
        else:
            self._step(RequestEvent.STILL)
            self._ask(ReadEntry(self._name))

    def read(self, entry: RegionEntry | None) -> None:
        if self.state is RequestState.READING:
            self._step(RequestEvent.ANSWERED)
            self._tell(Seen(entry))
            return
        assert self._change is not None
        old = self._change.request.old
        if entry is not None and old is not None and entry.tag == old.tag and entry.epoch > 1:
            self._step(RequestEvent.STILL)
            self._renewed = rules.renewed(entry)
            self._ask(ChangeEntry(self._name, entry, self._renewed))
        else:
            self._resolved(entry)

    def _resolved(self, entry: RegionEntry | None) -> None:
        self._step(RequestEvent.ANSWERED)
        self._change = self._renewed = None
        self._tell(Seen(entry))

    def _tell(self, seen: Seen) -> None:
        asked, self._asked = self._asked, {}
        for then in asked.values():
            then(seen)
        self._begin()
