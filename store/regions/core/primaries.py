"""The regions that one daemon serves, by name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from spark_jms.store.regions.core.copies import RegionCopy
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.follower import Follower, ResilverBudget
from spark_jms.store.regions.core.primary import Primary, PrimaryEvent
from spark_jms.store.regions.core.shared import Shared


@dataclass(frozen=True)
class PrimaryStream:
    primary: Primary
    follower: Follower

    @property
    def current(self) -> bool:
        return not self.primary.ended and self.follower in self.primary.replication.followers


class Primaries(Mapping[str, Primary]):
    """A primary that has ended is no longer in the mapping."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._by_name: dict[str, Primary] = {}
        self._by_stream: dict[str, PrimaryStream] = {}
        self.budget = ResilverBudget(shared.settings.resilver_bytes_per_s)

    def __getitem__(self, name: str) -> Primary:
        primary = self._by_name[name]
        if primary.ended:
            raise KeyError(name)
        return primary

    def __iter__(self) -> Iterator[str]:
        return iter([name for name, primary in self._by_name.items() if not primary.ended])

    def __len__(self) -> int:
        return sum(not primary.ended for primary in self._by_name.values())

    # ---- one more

    def create(self, draft: RegionEntry, copy: RegionCopy) -> Primary:
        """A region that the directory does not have yet."""
        primary = self._add(draft, copy, PrimaryEvent.CREATED)
        primary.place()
        return primary

    def take_up(self, entry: RegionEntry) -> Primary | None:
        """Serves the region, as the directory names this daemon primary. None without the copy, or before it is entered."""
        primary = self.get(entry.name)
        if primary is not None:
            return primary if primary.listed and primary.entry.region_id == entry.region_id else None
        copy = self._shared.copies.get(entry.name)
        if copy is None or copy.region_id != entry.region_id:
            return None
        self._shared.copies.unfollow(entry.name)
        return self._add(entry, copy, PrimaryEvent.NAMED)

    def _add(self, entry: RegionEntry, copy: RegionCopy, event: PrimaryEvent) -> Primary:
        self._forget_ended()
        primary = self._by_name[entry.name] = Primary(self._shared, self.budget, entry, copy, event)
        return primary

    def _forget_ended(self) -> None:
        if any(primary.ended for primary in self._by_name.values()):
            self._by_name = dict(self)
            self._by_stream = {}

    # ---- events

    def stream_of(self, holder: Holder | None, stream: str) -> PrimaryStream | None:
        """The stream of this number to this holder, if it still runs."""
        found = self._by_stream.get(stream)
        if found is None:
            streams = [PrimaryStream(p, f) for p in self.values() for f in p.replication.followers]
            self._by_stream = {stream.follower.stream: stream for stream in streams}
            found = self._by_stream.get(stream)
        return found if found is not None and found.current and found.follower.holder == holder else None

    def linked(self, daemon: int) -> None:
        """A new connection to this daemon."""
        for primary in self.values():
            primary.replication.resend(daemon)

    def doubt_all(self) -> None:
        """This daemon stood still, and any of its secondaries may have taken over."""
        for primary in self.values():
            primary.doubt()

    def doubt_secondary(self, daemon: int) -> None:
        """This daemon was not confirmed for a while. It may have taken over before it was confirmed again."""
        for primary in self.values():
            if primary.entry.secondary is not None and primary.entry.secondary.daemon == daemon:
                primary.doubt()

    def client_left(self, client: int) -> None:
        for primary in self.values():
            if primary.client == client:
                primary.close()

    def tick(self) -> None:
        self._forget_ended()
        resilvers = self.resilvers
        for primary in self.values():
            resilvers -= primary.replication.resilvering
            self._shared.directory.attempt(primary.tick, resilvers < self._shared.settings.resilvers_at_once)
            resilvers += primary.replication.resilvering

    # ---- counts

    @property
    def resilvers(self) -> int:
        return sum(primary.replication.resilvering for primary in self.values())

    @property
    def opened(self) -> int:
        return sum(primary.entry.opener is not None for primary in self.values())
