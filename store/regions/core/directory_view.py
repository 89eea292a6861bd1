"""The Global Directory as one daemon sees it: failures are values, and unanswered changes are remembered. Pure.

Theory. A change that the directory did not answer may have happened, may not have happened, or may still happen: the
request may be on its way to a file server after its sender gave up or died. Reading the old entry therefore proves
nothing. But a change is a compare-and-swap on the entry's epoch, so this daemon can make it impossible by raising the
epoch itself (RENEWED).

    the directory now has          conclusion and next step
    another entry than before      this change or another one has happened: the doubt is resolved
    the old entry                  write RENEWED; once that is answered, the change can no longer happen
    the old entry, at epoch 1      no store has opened the region; the one that opens it raises the epoch
    nothing, as before             the region may still appear: the daemon that made it deletes it if it has no copy

An absent directory is not an empty one: in the mount point of a directory that is away, every region has no entry. Taken
for a removal, that would make each primary free its memory. So a region counts as removed only if the directory records
its removal, and as never created only if the directory shows its identity and this daemon has seen no entry of it:

    no entry, because              no entry was seen before       an entry was seen before
    REMOVED                        no entry                       no entry
    NOTHING                        no entry                       DirectoryUnavailableError
    UNSEEN                         DirectoryUnavailableError      DirectoryUnavailableError

No decision about a region is taken while a doubt about it is open, because every look goes through this class. A
secondary whose take-over was not answered may be primary without knowing it. It continues to follow, so writes are safe.
Until the doubt is resolved it does not echo the primary's heartbeats, so the primary asks the directory before it serves
a read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from spark_jms.store.errors import DirectoryUnavailableError, RegionEntryDamagedError, RegionEntryVersionError
from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Absent, DirectoryListing, DirectoryPort, Holder, RegionEntry
from spark_jms.store.regions.core.outgoing import Outgoing

UNREADABLE = (RegionEntryDamagedError, RegionEntryVersionError)


class DirectoryView:
    def __init__(self, port: DirectoryPort, out: Outgoing) -> None:
        self.port = port
        self.seen: Mapping[str, RegionEntry] = {}  # as of the last survey
        self.unreadable: Mapping[str, DirectoryUnavailableError] = {}  # as of the last survey
        self._refused: dict[str, DirectoryUnavailableError] = {}  # unreadable at the last look
        self._logged: set[str] = set()  # failures since the directory last answered a survey
        self._out = out
        self._doubts: dict[str, RegionEntry | None] = {}  # the entry that an unanswered change was to replace
        self._known: set[str] = set()  # regions that had an entry, and of which no removal was seen

    # ---- raising DirectoryUnavailableError

    def read(self, name: str) -> RegionEntry | None:
        found = self.port.read(name)
        if isinstance(found, RegionEntry):
            self._known.add(name)
            return found
        if found is Absent.REMOVED:
            self._known.discard(name)
        elif found is Absent.UNSEEN or name in self._known:
            raise _missing(name, found)
        return None

    def entries(self) -> DirectoryListing:
        listing = self.port.entries()
        self._known |= listing.entries.keys() | listing.unreadable.keys()
        self._known -= listing.removed
        missing = self._known - listing.entries.keys() - listing.unreadable.keys()
        unreadable = {**listing.unreadable, **{name: _missing(name, Absent.NOTHING) for name in missing}}
        return replace(listing, unreadable=unreadable)

    def survey(self) -> Mapping[str, RegionEntry]:
        """All entries, kept as `seen`. Logs each unreadable one once."""
        listing = self.entries()
        for name in sorted(listing.unreadable.keys() - self.unreadable.keys()):
            self._out.log(1, f"region {name} is refused: {listing.unreadable[name]}")
        self.seen, self.unreadable = listing.entries, listing.unreadable
        self._logged.clear()
        return self.seen

    def discard(self, name: str) -> bool:
        """Removes a region whose entry is damaged. False when it is not damaged any more."""
        done = self.port.discard(name)
        if done:
            self._known.discard(name)
        return done

    def _log(self, error: DirectoryUnavailableError) -> None:
        """Once, until the directory answers again. Unreadable entries are logged by the survey."""
        text = str(error)
        if text not in self._logged and not isinstance(error, UNREADABLE):
            self._logged.add(text)
            self._out.log(1, text)

    def attempt(self, step: Callable[..., None], *arguments: Any) -> None:
        """Runs `step`. When the directory is away, logs that: a later tick tries again."""
        try:
            step(*arguments)
        except DirectoryUnavailableError as error:
            self._log(error)

    # ---- with failures as values

    def may_run(self, holder: Holder) -> bool:
        """False only when this incarnation of the daemon has certainly ended."""
        try:
            return self.port.running(holder)
        except DirectoryUnavailableError:
            return True

    def look(self, name: str) -> tuple[bool, RegionEntry | None]:
        """Whether the directory's state of this region is known, and the entry."""
        self._refused.pop(name, None)
        try:
            entry = self.read(name)
            if name in self._doubts:
                return self._resolve(name, entry)
            return True, entry
        except DirectoryUnavailableError as error:
            if isinstance(error, UNREADABLE):
                self._refused[name] = error
            self._log(error)
            return False, None

    def _resolve(self, name: str, entry: RegionEntry | None) -> tuple[bool, RegionEntry | None]:
        old = self._doubts[name]
        if entry is not None and old is not None and entry.tag == old.tag and entry.epoch > 1:
            new = rules.renewed(entry)
            if not self.port.swap(name, entry, new):
                return False, None  # changed by another daemon in this moment: the next look reads it
            entry = new
        del self._doubts[name]
        return True, entry

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool | None:
        """None: not answered, so the outcome is unknown. Look before doing anything else with this region."""
        try:
            done = self.port.swap(name, old, new)
        except DirectoryUnavailableError as error:
            self._log(error)
            self._doubts[name] = old
            return None
        if done:
            self._doubts.pop(name, None)  # the entry that it was to replace no longer exists
            (self._known.discard if new is None else self._known.add)(name)
        return done

    def why_unreadable(self, name: str) -> DirectoryUnavailableError | None:
        """Why the last `look` could not read the entry; None when it could, or the directory did not answer at all."""
        return self._refused.get(name)

    # ---- doubts

    def doubtful(self) -> list[str]:
        """The names of the regions with an unanswered change."""
        return list(self._doubts)

    def doubts(self, index: int) -> bool:
        """Whether this daemon has an unanswered change of a region whose primary is daemon `index`."""
        return any(old is not None and old.primary.daemon == index for old in self._doubts.values())


def _missing(name: str, absent: Absent) -> DirectoryUnavailableError:
    return DirectoryUnavailableError(f"region {name} has no entry: {absent.value}")
