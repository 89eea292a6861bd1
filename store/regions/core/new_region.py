"""A region that this daemon creates: its second place, then its entry in the directory. Pure.

Theory. A new region is empty, so an empty second copy is complete. The directory gets the entry after the second copy
exists, or when no daemon has room for one. From then on a `Primary` serves the region. Entered without an answer, the
region may have been made, and removed again: its id and epoch are used up, so it is not entered a second time.

Features: R9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import partial

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.entry_requests import Outcome, Seen
from spark_jms.store.regions.core.follower import Follower, FollowerEvent, Purpose, ResilverBudget
from spark_jms.store.regions.core.placement import next_daemon
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.replication import Replication
from spark_jms.store.regions.core.shared import Shared
from spark_jms.store.regions.core.state_table import StateTable, StateTransition


class NewRegionState(Enum):
    PLACING = "placing"
    ENTERING = "entering"
    REFUSED = "refused"
    IN_DOUBT = "in doubt"
    ENTERED = "entered"
    GIVEN_UP = "given up"


class NewRegionEvent(Enum):
    PLACED = "the second copy exists, or has no place"
    DONE = "the directory has the entry"
    REFUSED = "the directory has another entry"
    UNKNOWN = "the directory does not answer"
    ABSENT = "the directory has no entry"
    OTHER = "another daemon has the region"


NEW_REGION_STATES = StateTable(
    StateTransition(NewRegionState.PLACING, NewRegionEvent.PLACED, NewRegionState.ENTERING, "asks the directory"),
    StateTransition(NewRegionState.ENTERING, NewRegionEvent.DONE, NewRegionState.ENTERED, "a primary serves it"),
    StateTransition(NewRegionState.ENTERING, NewRegionEvent.REFUSED, NewRegionState.REFUSED, "reads on every tick"),
    StateTransition(NewRegionState.ENTERING, NewRegionEvent.UNKNOWN, NewRegionState.IN_DOUBT, "reads on every tick"),
    StateTransition(NewRegionState.REFUSED, NewRegionEvent.ABSENT, NewRegionState.PLACING, "asks again"),
    StateTransition(NewRegionState.REFUSED, NewRegionEvent.OTHER, NewRegionState.GIVEN_UP, "frees the copy"),
    StateTransition(NewRegionState.IN_DOUBT, NewRegionEvent.DONE, NewRegionState.ENTERED, "a primary serves it"),
    StateTransition(NewRegionState.IN_DOUBT, NewRegionEvent.ABSENT, NewRegionState.GIVEN_UP, "frees the copy"),
    StateTransition(NewRegionState.IN_DOUBT, NewRegionEvent.OTHER, NewRegionState.GIVEN_UP, "frees the copy"),
)


class NewRegion:
    def __init__(
        self,
        shared: Shared,
        budget: ResilverBudget,
        draft: RegionEntry,
        copy: RegionCopy,
        entered: Callable[[], None],
    ) -> None:
        self.primary: Primary | None = None  # once the directory has the entry
        self.state: NewRegionState | None = NewRegionState.PLACING
        self.replication = Replication(shared, copy)
        self.region_id = draft.region_id
        self._draft = draft
        self._shared = shared
        self._budget = budget
        self._asked: set[int] = set()  # each daemon is asked once for the second copy
        self._ready = entered

    @property
    def given_up(self) -> bool:
        return self.state is NewRegionState.GIVEN_UP

    def _step(self, event: NewRegionEvent) -> None:
        self.state = NEW_REGION_STATES.next(self.state, event)

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
        if self.state is NewRegionState.PLACING:
            self.replication.remove(follower)
            self.place()

    def tick(self, may_resilver: bool) -> None:
        if self.state in (NewRegionState.REFUSED, NewRegionState.IN_DOUBT):
            self._shared.directory.look(self._draft.name, self, self._looked)
        if self.state is not NewRegionState.PLACING:
            return
        for follower in list(self.replication.followers):
            if self._shared.peers.dead(follower.holder):
                self.refused(follower, "dead")
            else:
                follower.nudge()
                self._advance(follower)
        if self.state is NewRegionState.PLACING and not self.replication.followers:
            self._enter(None)

    def _advance(self, follower: Follower) -> None:
        if follower.may_join and self.state is NewRegionState.PLACING:
            self._enter(follower.holder)

    # ---- the directory

    def _enter(self, secondary: Holder | None) -> None:
        draft, me = self._draft, self._shared.me
        entry = rules.created(draft.name, draft.region_id, draft.size, me, secondary, draft.created_us)
        self._step(NewRegionEvent.PLACED)
        self._shared.directory.change(draft.name, None, entry, partial(self._changed, entry))

    def _changed(self, entry: RegionEntry, outcome: Outcome) -> None:
        self._step(NewRegionEvent[outcome.name])
        if outcome is Outcome.DONE:
            self._entered(entry)
        else:
            self._shared.directory.look(entry.name, self, self._looked)

    def _looked(self, seen: Seen) -> None:
        if not seen.known or self.state not in (NewRegionState.REFUSED, NewRegionState.IN_DOUBT):
            return
        if seen.entry is None:
            self._step(NewRegionEvent.ABSENT)
        elif seen.entry.region_id == self.region_id and seen.entry.primary == self._shared.me:
            self._step(NewRegionEvent.DONE)
            self._entered(seen.entry)
        else:
            self._step(NewRegionEvent.OTHER)
        if self.given_up:
            self._give_up("it may have been removed again" if seen.entry is None else "another daemon has it")

    def _entered(self, entry: RegionEntry) -> None:
        for follower in self.replication.followers:
            follower.purpose = Purpose.SECONDARY
            if follower.holder == entry.secondary:
                follower.step(FollowerEvent.LISTED)
                follower.replicate(entry.epoch, [], 0)  # it has to answer once more before a client opens the region
        self.primary = Primary(self._shared, self._budget, entry, self.replication)
        copies = " and ".join(str(holder.daemon) for holder in entry.holders())
        self._shared.out.log(2, f"region {entry.name}: created, {entry.size} bytes, copies on {copies}")
        self._ready()

    def _give_up(self, reason: str) -> None:
        """The client that waits for the region tries again, with another id."""
        self._shared.copies.free(self._draft.name)
        self._shared.out.log(1, f"region {self._draft.name}: no longer served here, {reason}")
