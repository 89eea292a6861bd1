"""One store of the simulated world: what its readers must find, and which process has it."""

from __future__ import annotations

from typing import Protocol

from spark_jms.store.regions.client.space import RegionSpace
from tests.models.regions.acknowledged import Acknowledged


class Opener(Protocol):
    """A process that opens the store."""

    name: str

    def supersede(self) -> None:
        """Another process has the store now. This one may not know yet, and continues for a while."""

    def maps(self) -> dict[str, RegionSpace] | None:
        """The maps of its regions; None while a write is under way, or without the store."""


class Stored:
    """`processes` take turns; `owner` is the one that opened all regions last. `objects`: its objects are the store's
    contents; otherwise a record log is."""

    def __init__(self, name: str, region_bytes: int, objects: bool) -> None:
        self.name = name
        self.region_bytes = region_bytes
        self.objects = objects
        self.acknowledged = Acknowledged()
        self.processes: list[Opener] = []
        self.owner: Opener | None = None
        self.removals = 0  # of its regions, by force
        self.acks = 0
        self.spoiled = False  # a record log without one of its regions cannot be read

    def take(self, process: Opener) -> None:
        if self.owner not in (None, process):
            self.owner.supersede()
        self.owner = process

    def leave(self, process: Opener) -> None:
        if self.owner is process:
            self.owner = None

    def region_removed(self) -> None:
        self.removals += 1
        self.spoiled = not self.objects
        self.acknowledged.forget_one()

    def renew(self) -> None:
        self.spoiled, self.acknowledged = False, Acknowledged()

    def maps(self) -> dict[str, RegionSpace] | None:
        return self.owner.maps() if self.owner is not None else None
