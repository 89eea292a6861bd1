"""The regions that one daemon serves, by name. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.follower import Follower, ResilverBudget
from spark_jms.store.regions.core.new_region import NewRegion
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.replication import Replication
from spark_jms.store.regions.core.shared import Shared

MAX_GIVEN_UP = 1_000


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


def _current(region: Primary | NewRegion) -> Primary | NewRegion | None:
    """The primary of a new region once there is one; None when the region has ended."""
    if isinstance(region, NewRegion):
        if region.primary is None:
            return None if region.given_up else region
        region = region.primary
    return None if region.ended else region
