"""Bringing the copies of this daemon in line with the directory: take over, give up, free. Pure.

Every message that might be lost only makes this happen sooner. An audit once a second compares copies and directory, and
repairs what a lost message left behind.

Features: R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from functools import partial

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import DirectoryListing, RegionEntry
from spark_jms.store.regions.core.entry_requests import Outcome, Seen
from spark_jms.store.regions.core.opening import Opening
from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.primary_state import PrimaryState
from spark_jms.store.regions.core.protocol import Notice
from spark_jms.store.regions.core.replica import Replicas
from spark_jms.store.regions.core.shared import Shared


class Reconciliation:
    def __init__(self, shared: Shared, primaries: Primaries, replicas: Replicas, opening: Opening) -> None:
        self._shared = shared
        self._primaries = primaries
        self._replicas = replicas
        self._opening = opening

    def region(self, name: str) -> None:
        """Reads the entry and acts on it. Then the clients that wait for a region get their turn."""
        primary = self._primaries.get(name)
        if primary is not None:
            primary.refresh()
        elif not self._primaries.in_work(name):  # otherwise not in the directory yet, as far as this daemon knows
            self._shared.directory.look(name, self, partial(self._looked, name, self._shared.clock.now_ms))
        self._opening.tick()

    def _looked(self, name: str, asked_ms: float, seen: Seen) -> None:
        if not seen.known or self._primaries.in_work(name):
            return
        entry, me, dead = seen.entry, self._shared.me, self._shared.peers.dead
        if entry is not None and entry.primary == me:
            if self._primaries.take_up(entry) is None:
                self._delete_copyless(entry)
            else:
                self._opening.tick()
        elif entry is not None and entry.secondary == me and self._has(entry):
            if dead(entry.primary):
                self._promote(entry)
        elif entry is not None and entry.secondary == me and entry.epoch == 1:
            if dead(entry.primary):
                self._delete(entry, "its primary died before a client opened it")
        elif self._shared.copies.heard_since(name, asked_ms):
            pass  # its primary may be listing it
        elif name in self._shared.copies and self._replicas.abandoned(name):
            self._give_up(name, entry)

    def dead_primaries(self) -> None:
        """Takes over, where the directory allows it, from primaries that are dead."""
        for name, followed in list(self._shared.copies.followed.items()):
            holder = self._shared.peers.holder_of(followed.primary)
            if holder is None or self._shared.peers.dead(holder):
                self.region(name)

    def doubts(self) -> None:
        for name in self._shared.directory.doubtful():
            self.region(name)

    def audit(self, listing: DirectoryListing) -> None:
        """Looks at each region that is not as the list has it."""
        seen = listing.entries
        listed = [name for name, entry in seen.items() if self._shared.me in entry.holders()]
        for name in dict.fromkeys((*listed, *self._shared.copies)):
            if not self._is_kept(name, seen.get(name)):
                self.region(name)

    def _is_kept(self, name: str, entry: RegionEntry | None) -> bool:
        """Whether this daemon serves the region just as the directory has it, or follows its living primary."""
        primary = self._primaries.get(name)
        if entry is None:
            return False
        if primary is not None:
            return primary.state is PrimaryState.SERVING and primary.entry == entry
        followed = self._shared.copies.followed.get(name)
        return (
            followed is not None
            and entry.secondary == self._shared.me
            and followed.copy.region_id == entry.region_id
            and followed.primary == entry.primary.daemon
            and not self._shared.peers.dead(entry.primary)
        )

    def _delete_copyless(self, entry: RegionEntry) -> None:
        """This daemon gave the region up before an unanswered creation happened, so no client has opened it. Any other
        region stays, because another daemon may have a good copy."""
        created_late = entry.epoch == 1 or self._primaries.gave_up(entry.region_id)
        if entry.opener is None and created_late:
            self._delete(entry, "it was created too late")

    def _delete(self, entry: RegionEntry, reason: str) -> None:
        def deleted(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._shared.out.log(2, f"region {entry.name}: removed, {reason}")

        self._shared.directory.change(entry.name, entry, None, deleted)

    def _give_up(self, name: str, entry: RegionEntry | None) -> None:
        """Frees a copy that is not listed. If its primary, dead or not, may be listing it, that is made impossible first."""
        followed, copy, me = self._shared.copies.followed.get(name), self._shared.copies[name], self._shared.me
        may_be_listed = (
            entry is not None
            and not entry.is_destroyed
            and entry.region_id == copy.region_id
            and (followed is None or followed.primary == entry.primary.daemon)
        )
        if not may_be_listed:
            self._shared.copies.free(name)
        elif entry is not None and me not in entry.holders():
            renounced = partial(self._renounced, entry, copy)
            self._shared.directory.change(name, entry, rules.renounced(entry, me), renounced)

    def _renounced(self, entry: RegionEntry, copy: RegionCopy, outcome: Outcome) -> None:
        if outcome is not Outcome.DONE:
            return
        if self._shared.copies.get(entry.name) is copy:  # it was not filled again meanwhile
            self._shared.copies.free(entry.name)
        # Without the new epoch, its next listing fails as well, the copy is given up again, and so on.
        self._shared.out.to_peer(entry.primary.daemon, Notice(entry.name))

    def _has(self, entry: RegionEntry) -> bool:
        copy = self._shared.copies.get(entry.name)
        return copy is not None and copy.region_id == entry.region_id

    def _promote(self, entry: RegionEntry) -> None:
        new = rules.promoted(entry, self._shared.me)

        def promoted(outcome: Outcome) -> None:
            if outcome is Outcome.DONE:
                self._shared.out.log(1, f"region {entry.name}: took over from daemon {entry.primary.daemon}")
                self._primaries.take_up(new)
                self._opening.tick()

        self._shared.directory.change(entry.name, entry, new, promoted)
