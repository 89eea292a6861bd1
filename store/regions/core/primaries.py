"""The regions that one daemon serves, by name, and those that it creates. Pure.

Theory of a new region. It is empty, so an empty second copy is complete. The directory gets the entry after the second copy
exists, or when no daemon has room for one. From then on a `Primary` serves the region. Entered without an answer, the
region may have been made, and removed again: its id and epoch are used up, so it is not entered a second time.

Features: R9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial

from spark_jms.store.regions.core.copies import RegionCopy, Shared
from spark_jms.store.regions.core.directory_view import Outcome, Seen
from spark_jms.store.regions.core.peers import next_daemon
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.replication import Follower, FollowerEvent, Purpose, Replication, ResilverBudget
from spark_jms.store.regions.protocol import region_entry as rules
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from spark_jms.store.state_table import StateTable, StateTransition

MAX_GIVEN_UP = 1_000


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


@dataclass(frozen=True)
class PrimaryStream:
    region: Primary | NewRegion
    follower: Follower


class Primaries(Mapping[str, Primary]):
    """Only the regions that the directory has. A primary that has ended is no longer in the mapping."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._by_name: dict[str, Primary | NewRegion] = {}  # a new one stays, and leads to its primary
        self._by_stream: dict[str, PrimaryStream] = {}
        self._given_up = deque[str](maxlen=MAX_GIVEN_UP)  # region ids
        self.budget = ResilverBudget(shared.settings.resilver_bytes_per_s)

    def __getitem__(self, name: str) -> Primary:
        region = _current(self._by_name[name])
        if not isinstance(region, Primary):
            raise KeyError(name)
        return region

    def __iter__(self) -> Iterator[str]:
        return iter([primary.entry.name for primary in self._primaries()])

    def __len__(self) -> int:
        return len(self._primaries())

    def in_work(self, name: str) -> bool:
        """Whether this daemon serves the region or creates it."""
        region = self._by_name.get(name)
        return region is not None and _current(region) is not None

    def created(self, name: str, new: NewRegion | None) -> bool:
        """Whether the region that this daemon has in work is the one that `new` created."""
        return new is not None and self._by_name.get(name) is new and self.in_work(name)

    def gave_up(self, region_id: str) -> bool:
        """Whether this daemon began to create the region and gave it up, so that no client has opened it."""
        self._forget_ended()
        return region_id in self._given_up

    def _regions(self) -> list[Primary | NewRegion]:
        return [region for region in map(_current, self._by_name.values()) if region is not None]

    def _primaries(self) -> list[Primary]:
        return [region for region in self._regions() if isinstance(region, Primary)]

    # ---- one more

    def create(self, draft: RegionEntry, copy: RegionCopy, entered: Callable[[], None]) -> NewRegion:
        """A region that the directory does not have yet. Calls `entered` once it has."""
        self._forget_ended()
        new = self._by_name[draft.name] = NewRegion(self._shared, self.budget, draft, copy, entered)
        new.place()
        return new

    def take_up(self, entry: RegionEntry) -> Primary | None:
        """Serves the region, as the directory names this daemon primary. None without the copy, or before it is entered."""
        if self.in_work(entry.name):
            primary = self.get(entry.name)
            return primary if primary is not None and primary.entry.region_id == entry.region_id else None
        copy = self._shared.copies.get(entry.name)
        if copy is None or copy.region_id != entry.region_id:
            return None
        self._forget_ended()
        self._shared.copies.unfollow(entry.name)
        primary = self._by_name[entry.name] = Primary(self._shared, self.budget, entry, Replication(self._shared, copy))
        return primary

    def _forget_ended(self) -> None:
        if not all(map(_current, self._by_name.values())):
            new = [region for region in self._by_name.values() if isinstance(region, NewRegion) and region.given_up]
            self._given_up.extend(region.region_id for region in new)
            self._by_name = {name: region for name, region in self._by_name.items() if _current(region)}
            self._by_stream = {}

    # ---- events

    def acked(self, holder: Holder | None, stream: str, seq: int) -> bool:
        """True when a client that waits for the region may have become able to open it."""
        found = self._stream_of(holder, stream)
        region = _current(found.region) if found is not None else None
        return found is not None and region is not None and region.acked(found.follower, seq)

    def refused(self, holder: Holder | None, stream: str, reason: str) -> None:
        found = self._stream_of(holder, stream)
        region = _current(found.region) if found is not None else None
        if found is not None and region is not None:
            region.refused(found.follower, reason)

    def _stream_of(self, holder: Holder | None, stream: str) -> PrimaryStream | None:
        """The stream to this holder, if it still runs."""
        if stream not in self._by_stream:
            streams = [PrimaryStream(r, f) for r in self._regions() for f in r.replication.followers]
            self._by_stream = {stream.follower.stream: stream for stream in streams}
        found = self._by_stream.get(stream)
        runs = found is not None and found.follower.state is not None and found.follower.holder == holder
        return found if runs else None

    def linked(self, daemon: int) -> None:
        """A new connection to this daemon."""
        for region in self._regions():
            region.replication.resend(daemon)

    def doubt_all(self) -> None:
        """This daemon stood still, and any of its secondaries may have taken over."""
        for primary in self._primaries():
            primary.doubt()

    def doubt_secondary(self, daemon: int) -> None:
        """This daemon was not confirmed for a while. It may have taken over before it was confirmed again."""
        for primary in self._primaries():
            if primary.entry.secondary is not None and primary.entry.secondary.daemon == daemon:
                primary.doubt()

    def client_left(self, client: int) -> None:
        for primary in self._primaries():
            if primary.use.client == client:
                primary.close()

    def tick(self) -> None:
        regions, most = self._regions(), self._shared.settings.resilvers_at_once
        if len(regions) < len(self._by_name):
            self._forget_ended()
        resilvers = sum([region.replication.resilvering for region in regions])
        for region in regions:
            others = resilvers - region.replication.resilvering
            region.tick(others < most)
            resilvers = others + region.replication.resilvering

    # ---- counts

    @property
    def resilvers(self) -> int:
        return sum([region.replication.resilvering for region in self._regions()])

    @property
    def opened(self) -> int:
        return sum([primary.entry.opener is not None for primary in self._primaries()])


class NewRegion:
    """A region that this daemon creates: its second place, then its entry in the directory."""

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


def _current(region: Primary | NewRegion) -> Primary | NewRegion | None:
    """The primary of a new region once there is one; None when the region has ended."""
    if isinstance(region, NewRegion):
        if region.primary is None:
            return None if region.given_up else region
        region = region.primary
    return None if region.ended else region
