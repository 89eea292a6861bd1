"""What this daemon wrote to the Global Directory and nobody answered. Pure.

Theory. A change that was not answered may have happened, or not, or may still happen: a request to a file server is on its
way when its sender gives it up, or dies. A look that finds the old entry proves nothing. But a change is a compare-and-swap
on the entry's epoch, so it can be made impossible: whoever is in doubt raises the epoch himself (RENEWED).

    the directory says             what is so, and what is done
    another entry than before      it has happened, or another change has: settled
    the old entry                  RENEWED first; only when that was answered, it has not happened and never will
    the old entry, at epoch 1      nobody has opened the region: whoever does raises the epoch
    nothing, as before             a region that may still be made: whoever made it deletes what it has no copy of

Nothing is decided about a region before its last change is settled: every look goes through here. A secondary whose
taking over was not answered may be primary without knowing it. It goes on following, so writes are safe; but while it is
in doubt it does not tell the primary that it has heard from it, so that one asks the directory before it serves a read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_jms.store.errors import DirectoryUnavailableError
from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import RegionEntry

if TYPE_CHECKING:
    from spark_jms.store.regions.core.daemon import DaemonCore


class Settling:
    """The directory, with its failures as values."""

    def __init__(self, daemon: DaemonCore) -> None:
        self._daemon = daemon
        self._open: dict[str, RegionEntry | None] = {}  # what an unanswered change was to replace

    def look(self, name: str) -> tuple[bool, RegionEntry | None]:
        """Whether it is known, and the entry."""
        try:
            entry = self._daemon.directory.read(name)
            if name in self._open:
                return self._settle(name, entry)
            return True, entry
        except DirectoryUnavailableError as error:
            self._daemon.log(1, str(error))
            return False, None

    def _settle(self, name: str, entry: RegionEntry | None) -> tuple[bool, RegionEntry | None]:
        old = self._open[name]
        if entry is not None and old is not None and entry.tag == old.tag and entry.epoch > 1:
            new = rules.renewed(entry)
            if not self._daemon.directory.swap(name, entry, new):
                return False, None  # somebody changed it just now: the next look finds out
            entry = new
        del self._open[name]
        return True, entry

    def swap(self, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool | None:
        """None: nobody knows. Look before anything else is done."""
        try:
            done = self._daemon.directory.swap(name, old, new)
        except DirectoryUnavailableError as error:
            self._daemon.log(1, str(error))
            self._open[name] = old
            return None
        if done:
            self._open.pop(name, None)  # what it was to replace is not there any more
        return done

    def doubtful(self) -> list[str]:
        return list(self._open)

    def doubts(self, index: int) -> bool:
        """Whether this daemon may have changed a region of which that one is primary, and does not know."""
        return any(old is not None and old.primary.daemon == index for old in self._open.values())
