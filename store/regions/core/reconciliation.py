"""Bringing the copies of this daemon in line with the directory: take over, give up, free (R10). Pure.

Every message that might be lost only makes this happen sooner. An audit once a second compares copies and directory, and
repairs what a lost message left behind.
"""

from __future__ import annotations

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import RegionEntry
from spark_jms.store.regions.core.opening import Opening
from spark_jms.store.regions.core.primaries import Primaries
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
        known, entry = self._shared.directory.look(name)
        if not known:
            return
        primary = self._primaries.get(name)
        if primary is not None:
            primary.refresh()
        elif self._primaries.in_work(name):
            pass  # not in the directory yet, as far as this daemon knows
        elif entry is not None and entry.primary == self._shared.me:
            if self._primaries.take_up(entry) is None:
                self._delete_copyless(entry)
        elif entry is not None and entry.secondary == self._shared.me and self._has(entry):
            if self._shared.peers.dead(entry.primary):
                self._promote(entry)
        elif entry is not None and entry.secondary == self._shared.me and entry.epoch == 1:
            if self._shared.peers.dead(entry.primary) and self._shared.directory.swap(name, entry, None):
                self._shared.out.log(2, f"region {name}: removed, its primary died before a client opened it")
        elif name in self._shared.copies and self._replicas.abandoned(name):
            self._give_up(name, entry)
        self._opening.tick()

    def dead_primaries(self) -> None:
        """Takes over, where the directory allows it, from primaries that are dead."""
        for name, followed in list(self._shared.copies.followed.items()):
            holder = self._shared.peers.holder_of(followed.primary)
            if holder is None or self._shared.peers.dead(holder):
                self._shared.directory.attempt(self.region, name)

    def doubts(self) -> None:
        for name in self._shared.directory.doubtful():
            self._shared.directory.attempt(self.region, name)

    def audit(self) -> None:
        seen = self._shared.directory.survey()
        listed = [name for name, entry in seen.items() if self._shared.me in entry.holders()]
        for name in dict.fromkeys((*listed, *self._shared.copies)):
            self._shared.directory.attempt(self.region, name)

    def _delete_copyless(self, entry: RegionEntry) -> None:
        """This daemon gave the region up before an unanswered creation happened, so no client has opened it. Any other
        region stays, because another daemon may have a good copy."""
        created_late = entry.epoch == 1 or self._primaries.gave_up(entry.region_id)
        if entry.opener is None and created_late and self._shared.directory.swap(entry.name, entry, None):
            self._shared.out.log(2, f"region {entry.name}: removed, it was created too late")

    def _give_up(self, name: str, entry: RegionEntry | None) -> None:
        """Frees a copy that is not listed. If its primary, dead or not, may be listing it, that is made impossible first."""
        followed, copy, me = self._shared.copies.followed.get(name), self._shared.copies[name], self._shared.me
        may_be_listed = (
            entry is not None
            and entry.region_id == copy.region_id
            and (followed is None or followed.primary == entry.primary.daemon)
        )
        if may_be_listed:
            assert entry is not None
            if me in entry.holders() or not self._shared.directory.swap(name, entry, rules.renounced(entry, me)):
                return
            # Without the new epoch, its next listing fails as well, this copy is given up again, and so on.
            self._shared.out.to_peer(entry.primary.daemon, Notice(name))
        self._shared.copies.free(name)

    def _has(self, entry: RegionEntry) -> bool:
        copy = self._shared.copies.get(entry.name)
        return copy is not None and copy.region_id == entry.region_id

    def _promote(self, entry: RegionEntry) -> None:
        new = rules.promoted(entry, self._shared.me)
        if self._shared.directory.swap(entry.name, entry, new):
            self._shared.out.log(1, f"region {entry.name}: took over from daemon {entry.primary.daemon}")
            self._primaries.take_up(new)
