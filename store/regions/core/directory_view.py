"""The Global Directory as one daemon sees it: questions, changes and lists, each with an answer later. Pure.

An absent directory is not an empty one: in the mount point of a directory that is away, every region has no entry. Taken
for a removal, that would make each primary free its memory. So a region counts as removed only if the directory records
its removal, and as never created only if the directory shows its identity and this daemon has seen no entry of it:

    no entry, because              no entry was seen before       an entry was seen before
    REMOVED                        no entry                       no entry
    NOTHING                        no entry                       DirectoryUnavailableError
    UNSEEN                         DirectoryUnavailableError      DirectoryUnavailableError

No decision about a region is taken while a change of it has no answer, because every question goes through
core/entry_requests.py. A secondary whose take-over has no answer may be primary without knowing it. It continues to
follow, so writes are safe. Until it knows, it does not echo the primary's heartbeats, so the primary asks the directory
before it serves a read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.core.actions import AskDirectory
from spark_jms.store.regions.core.directory import (
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
from spark_jms.store.regions.core.entry_requests import Changed, EntryRequests, Look, Outcome
from spark_jms.store.regions.core.outgoing import Outgoing

UNREADABLE = (RegionEntryDamagedError, RegionEntryVersionError)
Listed = Callable[[DirectoryListing | DirectoryUnavailableError], None]
Discarded = Callable[[bool | DirectoryUnavailableError], None]


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


def _missing(name: str, absent: Absent) -> DirectoryUnavailableError:
    return DirectoryUnavailableError(f"region {name} has no entry: {absent.value}")
