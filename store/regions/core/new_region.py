"""A region that this daemon creates: its second place, then its entry in the directory (R9). Pure.

Theory. A new region is empty, so an empty second copy is complete. The directory gets the entry after the second copy
exists, or when no daemon has room for one. From then on a `Primary` serves the region.
"""

from __future__ import annotations

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.follower import Follower, FollowerEvent, Purpose, ResilverBudget
from spark_jms.store.regions.core.placement import next_daemon
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.replication import Replication
from spark_jms.store.regions.core.shared import Shared


class NewRegion:
    def __init__(self, shared: Shared, budget: ResilverBudget, draft: RegionEntry, copy: RegionCopy) -> None:
        self.primary: Primary | None = None  # once the directory has the entry
        self.given_up = False
        self.replication = Replication(shared, copy)
        self.region_id = draft.region_id
        self._draft = draft
        self._shared = shared
        self._budget = budget
        self._asked: set[int] = set()  # each daemon is asked once for the second copy
        self._told = False  # the directory was asked for the entry once, and did not answer

    def place(self) -> None:
        """Asks the next daemon for the second copy; enters the region with one copy when there is no such daemon."""
        peers, size = self._shared.peers, self._draft.size
        target = next_daemon(peers.me.daemon, peers.count, peers.candidates(), size, self._asked)
        holder = peers.holder_of(target) if target is not None else None
        if holder is None:
            self._enter(None)
        else:
            self._asked.add(holder.daemon)
            self.replication.begin(self._draft, holder, Purpose.CREATE)

    def acked(self, follower: Follower, seq: int) -> bool:
        """True when a client that waits for the region may have become able to open it."""
        if not follower.ack(seq):
            return False
        self._advance(follower)
        return not follower.unacked

    def refused(self, follower: Follower, reason: str) -> None:
        """Asks another daemon."""
        self.replication.remove(follower)
        self.place()

    def tick(self, may_resilver: bool) -> None:
        for follower in list(self.replication.followers):
            if self._shared.peers.dead(follower.holder):
                self.refused(follower, "dead")
            else:
                follower.nudge()
                self._advance(follower)
        if self.primary is None and not self.given_up and not self.replication.followers:
            self._enter(None)

    def _advance(self, follower: Follower) -> None:
        if follower.may_join and self.primary is None and not self.given_up:
            self._enter(follower.holder)

    # ---- the directory

    def _enter(self, secondary: Holder | None) -> None:
        """Asked once and not answered, the entry may have been made and removed again: its id and epoch are used up."""
        draft, directory, me = self._draft, self._shared.directory, self._shared.me
        entry = rules.created(draft.name, draft.region_id, draft.size, me, secondary, draft.created_us)
        done = None if self._told else directory.swap(draft.name, None, entry)
        if done:
            self._entered(entry)
            return
        self._told = self._told or done is None
        known, found = directory.look(draft.name)
        if not known or (found is None and not self._told):
            return  # the next tick tries again
        if found is None or found.region_id != draft.region_id:
            self._give_up("it may have been removed again" if found is None else "another daemon made it")
        else:
            self._entered(found)

    def _entered(self, entry: RegionEntry) -> None:
        for follower in self.replication.followers:
            follower.purpose = Purpose.SECONDARY
            if follower.holder == entry.secondary:
                follower.step(FollowerEvent.LISTED)
                follower.replicate(entry.epoch, [], 0)  # it has to answer once more before a client opens the region
        self.primary = Primary(self._shared, self._budget, entry, self.replication)
        copies = " and ".join(str(holder.daemon) for holder in entry.holders())
        self._shared.out.log(2, f"region {entry.name}: created, {entry.size} bytes, copies on {copies}")

    def _give_up(self, reason: str) -> None:
        """The client that waits for the region tries again, with another id."""
        self.given_up = True
        self._shared.copies.free(self._draft.name)
        self._shared.out.log(1, f"region {self._draft.name}: no longer served here, {reason}")
