"""The Global Directory as one daemon sees it: questions, changes and lists, each with an answer later. Pure.

An absent directory is not an empty one: in the mount point of a directory that is away, every region has no entry. Taken
for a removal, that would make each primary free its memory. So a region counts as removed only if the directory records
its removal, and as never created only if the directory shows its identity and this daemon has seen no entry of it:

    no entry, because              no entry was seen before       an entry was seen before
    REMOVED                        no entry                       no entry
    NOTHING                        no entry                       DirectoryUnavailableError
    UNSEEN                         DirectoryUnavailableError      DirectoryUnavailableError

Theory of the requests about one region (EntryRequests). The directory answers after milliseconds, after minutes, or never, and
the daemon serves its other regions meanwhile. At most one request per region is on its way, so answers arrive in the order of
their requests. A question gets the answer of a read that began after the question: an older read may have seen an older entry.

A change that failed may have happened, may not have happened, or may still happen: the request may be on its way to a file
server after its sender gave up or died. Reading the old entry therefore proves nothing. But a change is a compare-and-swap
on the entry's epoch, so this daemon can make it impossible by raising the epoch itself (RENEWED).

    the directory now has          conclusion and next step
    another entry than before      this change or another one has happened: the doubt is resolved
    the old entry                  write RENEWED; once that is answered, the change can no longer happen
    the old entry, at epoch 1      no store has opened the region; the one that opens it raises the epoch
    nothing, as before             the region may still appear: the daemon that made it deletes it if it has no copy

No decision about a region is taken while a change of it has no answer. A secondary whose take-over has no answer may be
primary without knowing it. It continues to follow, so writes are safe. Until it knows, it does not echo the primary's
heartbeats, so the primary asks the directory before it serves a read.

Features: R8, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.core.actions import AskDirectory, Outgoing
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.region_entry import (
    Absent,
    AskRunning,
    ChangeEntry,
    DirectoryAnswer,
    DirectoryListing,
    DirectoryRequest,
    DiscardEntry,
    Holder,
    ListEntries,
    ReadEntry,
    RegionEntry,
)
from spark_jms.store.state_table import StateTable, StateTransition

UNREADABLE = (RegionEntryDamagedError, RegionEntryVersionError)
Listed = Callable[[DirectoryListing | DirectoryUnavailableError], None]
Discarded = Callable[[bool | DirectoryUnavailableError], None]


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


class DirectoryView:
    def __init__(self, out: Outgoing) -> None:
        self.seen: Mapping[str, RegionEntry] = {}  # as of the last list
        self.unreadable: Mapping[str, DirectoryUnavailableError] = {}  # as of the last list
        self._out = out
        self._numbers = 0
        self._waiting: dict[int, Callable[[DirectoryAnswer], None]] = {}  # by the number of the request
        self._entries: dict[str, EntryRequests] = {}  # those with a request under way, or in doubt
        self._listing: list[Listed] = []
        self._list_next: list[Listed] = []
        self._asked_running: dict[Holder, list[Callable[[], None]]] = {}  # with what waits for the answer
        self._ended: set[Holder] = set()  # incarnations that have certainly ended
        self._known: set[str] = set()  # regions that had an entry, and of which no removal was seen
        self._touched: set[str] = set()  # regions that were read or changed since the last list was asked for
        self._logged: set[str] = set()  # failures since the directory last answered a list

    def answered(self, number: int, answer: DirectoryAnswer) -> None:
        """An answer to a request; what waited for it is called."""
        self._waiting.pop(number)(answer)

    def _ask(self, request: DirectoryRequest, then: Callable[[DirectoryAnswer], None]) -> None:
        self._numbers += 1
        self._waiting[self._numbers] = then
        self._out.add(AskDirectory(self._numbers, request))

    def _log(self, error: DirectoryUnavailableError) -> None:
        """Once, until the directory answers again. Unreadable entries are logged with the list."""
        text = str(error)
        if text not in self._logged and not isinstance(error, UNREADABLE):
            self._logged.add(text)
            self._out.log(1, text)

    # ---- one region

    def look(self, name: str, key: object, then: Look) -> None:
        """Calls `then` with an entry read after this moment. `key` is that of the question, see EntryRequests."""
        self._requests(name).look(key, then)

    def change(self, name: str, old: RegionEntry | None, new: RegionEntry | None, then: Changed) -> None:
        """After UNKNOWN, look before doing anything else with this region."""

        def changed(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._touched.add(name)
                (self._known.discard if new is None else self._known.add)(name)
            then(outcome)

        self._requests(name).change(old, new, changed)

    def _requests(self, name: str) -> EntryRequests:
        if name not in self._entries:
            self._entries[name] = EntryRequests(name, lambda request: self._ask_entry(name, request))
        return self._entries[name]

    def _ask_entry(self, name: str, request: DirectoryRequest) -> None:
        self._ask(request, lambda answer: self._entry_answered(name, request, answer))

    def _entry_answered(self, name: str, request: DirectoryRequest, answer: DirectoryAnswer) -> None:
        requests = self._entries[name]
        found = self._checked(name, answer) if isinstance(request, ReadEntry) else answer
        if isinstance(found, DirectoryUnavailableError):
            self._log(found)
            requests.failed(found)
        elif isinstance(found, bool):
            requests.swapped(found)
        else:
            assert found is None or isinstance(found, RegionEntry)
            requests.read(found)
        if requests.idle:
            self._entries.pop(name, None)

    def _checked(self, name: str, found: DirectoryAnswer) -> RegionEntry | DirectoryUnavailableError | None:
        """The table above."""
        self._touched.add(name)
        if isinstance(found, RegionEntry):
            self._known.add(name)
            return found
        if isinstance(found, DirectoryUnavailableError):
            return found
        if found is Absent.REMOVED:
            self._known.discard(name)
        elif found is Absent.UNSEEN or name in self._known:
            assert isinstance(found, Absent)
            return _missing(name, found)
        return None

    def doubtful(self) -> list[str]:
        """The names of the regions with an unanswered change."""
        return [change.name for change in self._changes()]

    def doubts(self, index: int) -> bool:
        """Whether this daemon has an unanswered change of a region whose primary is daemon `index`."""
        return any(change.old is not None and change.old.primary.daemon == index for change in self._changes())

    def _changes(self) -> list[ChangeEntry]:
        return [requests.changing for requests in self._entries.values() if requests.changing is not None]

    def discard(self, name: str, then: Discarded) -> None:
        """Removes a region whose entry is damaged. False when it is not damaged any more."""

        def discarded(answer: DirectoryAnswer) -> None:
            assert isinstance(answer, bool | DirectoryUnavailableError)
            if answer is True:
                self._known.discard(name)
            then(answer)

        self._ask(DiscardEntry(name), discarded)

    # ---- all regions

    def entries(self, then: Listed) -> None:
        """Calls `then` with a list read after this moment."""
        self._list_next.append(then)
        self._list()

    def _list(self) -> None:
        if self._list_next and not self._listing:
            self._listing, self._list_next = self._list_next, []
            self._touched.clear()
            self._ask(ListEntries(), self._listed)

    def _listed(self, answer: DirectoryAnswer) -> None:
        assert isinstance(answer, DirectoryListing | DirectoryUnavailableError)
        if isinstance(answer, DirectoryListing):
            answer = self._adopt(answer)
        else:
            self._log(answer)
        asked, self._listing = self._listing, []
        for then in asked:
            then(answer)
        self._list()

    def _adopt(self, listing: DirectoryListing) -> DirectoryListing:
        """Keeps it as `seen`. Logs each unreadable entry once."""
        present = listing.entries.keys() | listing.unreadable.keys()
        self._known |= present - self._touched
        self._known -= listing.removed - self._touched
        missing = self._known - present - self._touched
        unreadable = {**listing.unreadable, **{name: _missing(name, Absent.NOTHING) for name in missing}}
        for name in sorted(unreadable.keys() - self.unreadable.keys()):
            self._out.log(1, f"region {name} is refused: {unreadable[name]}")
        self.seen, self.unreadable = listing.entries, unreadable
        self._logged.clear()
        return replace(listing, unreadable=unreadable)

    # ---- other daemons

    def may_run(self, holder: Holder) -> bool:
        """False only when this incarnation has certainly ended. True until the directory has said so."""
        if holder not in self._ended and holder not in self._asked_running:
            self._ask_running(holder)
        return holder not in self._ended

    def look_which_run(self, holders: Collection[Holder], then: Callable[[], None]) -> None:
        """Calls `then` once `may_run` is up to date for all of them, or the directory fails."""
        waiting = {holder for holder in holders if holder not in self._ended}

        def told(holder: Holder) -> None:
            waiting.discard(holder)
            if not waiting:
                then()

        if not waiting:
            then()
        for holder in sorted(waiting, key=lambda holder: (holder.daemon, holder.incarnation)):
            if holder not in self._asked_running:
                self._ask_running(holder)
            self._asked_running[holder].append(partial(told, holder))

    def _ask_running(self, holder: Holder) -> None:
        self._asked_running[holder] = []
        self._ask(AskRunning(holder), lambda answer: self._told_running(holder, answer))

    def _told_running(self, holder: Holder, answer: DirectoryAnswer) -> None:
        if answer is False:
            self._ended.add(holder)
        for then in self._asked_running.pop(holder):
            then()


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


def _missing(name: str, absent: Absent) -> DirectoryUnavailableError:
    return DirectoryUnavailableError(f"region {name} has no entry: {absent.value}")
