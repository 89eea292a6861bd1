"""Regions of which no copy is left: each is told once, by name, in the log of every daemon that runs. Pure.

A region is lost once the directory says that every daemon that its entry lists has certainly ended. Its entry is read again
after that: until a moment ago one of them may have listed another copy. A change of theirs may still be on its way, and list
one later. RENEWED makes it impossible; from then on no daemon can list a copy. A region at epoch 1 is not renewed: no client
has opened it, and the next one creates it again. A region that was destroyed lists a life that never was, so the same holds of it.

Features: R18 (docs/FEATURES.md)
"""

from __future__ import annotations

from functools import partial

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import DirectoryListing, RegionEntry
from spark_jms.store.regions.core.entry_requests import Outcome, Seen
from spark_jms.store.regions.core.shared import Shared


class LostRegions:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told: set[str] = set()  # ids of regions

    def audit(self, listing: DirectoryListing) -> None:
        """With every list of the directory."""
        dead = self._shared.peers.dead
        self._told.intersection_update(entry.region_id for entry in listing.entries.values())
        for entry in listing.entries.values():
            if entry.region_id not in self._told and all(map(dead, entry.holders())):
                self._shared.directory.look_which_run(entry.holders(), partial(self._look, entry))

    def _look(self, entry: RegionEntry) -> None:
        if self._is_lost(entry):
            self._shared.directory.look(entry.name, self, self._looked)

    def _looked(self, seen: Seen) -> None:
        entry = seen.entry
        if entry is None or entry.region_id in self._told or not self._is_lost(entry):
            return
        if entry.epoch == 1:
            self._tell(entry, Outcome.DONE)
        else:
            self._shared.directory.change(entry.name, entry, rules.renewed(entry), partial(self._tell, entry))

    def _tell(self, entry: RegionEntry, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            return  # the next list asks again
        self._told.add(entry.region_id)
        daemons = " and ".join(f"daemon {holder.daemon}" for holder in entry.holders())
        reason = f"the lives of {daemons} that had its copies have ended"
        if entry.is_destroyed:
            reason = f"it was removed by force while {entry.opener} had it open"
        self._shared.out.log(1, f"region {entry.name} is LOST: {reason}")

    def _is_lost(self, entry: RegionEntry) -> bool:
        return not any(map(self._shared.peers.may_run, entry.holders()))
