"""Thirteen bugs to plant: each breaks a promise of the region store, and the simulator has to name it."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from spark_jms.store.net.frames import FrameReader
from spark_jms.store.regions.core import directory, new_region, placement
from spark_jms.store.regions.core.copies import Copies, FollowedStream, RegionCopy
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.core.directory import Absent, RegionEntry
from spark_jms.store.regions.core.directory_view import DirectoryView
from spark_jms.store.regions.core.follower import Follower, FollowerState, ResilverBudget
from spark_jms.store.regions.core.instance import InstanceCore, Planned
from spark_jms.store.regions.core.opening import Opening, Waiting
from spark_jms.store.regions.core.primary import Primary
from spark_jms.store.regions.core.protocol import Begin, RegionMessage
from spark_jms.store.regions.core.replica import Replicas
from spark_jms.store.regions.core.space import Block, RegionSpace, Step
from tests.simulator.directory import SimDirectory

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Planted:
    """`text`: a pattern that the violation must match."""

    name: str
    text: str
    plant: Callable[[Patch], None]

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def acknowledge_before_the_copy(patch: Patch) -> None:
    def acknowledge(self: Primary) -> None:
        for write in self.replication.pending:
            write.needs.clear()
        original(self)

    original = Primary.acknowledge
    patch.setattr(Primary, "acknowledge", acknowledge)


def no_fence(patch: Patch) -> None:
    """A daemon that wakes continues to serve without asking whether it is still primary."""
    patch.setattr(Primary, "_lease", lambda self: True)
    patch.setattr(DaemonCore, "_stood_still", lambda self: None)


def resilver_from_a_stale_copy(patch: Patch) -> None:
    """A daemon keeps a copy that was struck off, and uses it as a complete one when it is back."""

    def begin(self: Replicas, sender: int, message: Begin) -> None:
        copies = self._shared.copies
        copy = copies.get(message.name)
        if copy is not None and copy.region_id == message.region_id and copies.of_stream(message.stream) is None:
            now_ms = self._shared.clock.now_ms
            copies.follow(FollowedStream(copy, message.stream, sender, message.epoch, 1, now_ms))
        original(self, sender, message)

    original = Replicas.begin
    patch.setattr(Replicas, "begin", begin)


def absent_directory(patch: Patch) -> None:
    """An empty mount point counts as a directory from which all regions were removed."""

    def checked(self: DirectoryView, name: str, found: Any) -> Any:
        return None if isinstance(found, Absent) else found

    patch.setattr(DirectoryView, "_checked", checked)


def lost_directory_update(patch: Patch) -> None:
    """The directory accepts every write, even when another daemon wrote in between."""

    def swap(self: SimDirectory, name: str, old: RegionEntry | None, new: RegionEntry | None) -> bool:
        self.apply(name, self.contents.entries.get(name), new)
        return True

    patch.setattr(SimDirectory, "swap", swap)


def double_open(patch: Patch) -> None:
    def open_here(self: Opening, waiting: Waiting, entry: RegionEntry | None) -> bool:
        served = self._primaries.take_up(entry) if entry is not None else None
        if served is not None and served.client is not None and served.client != waiting.client:
            served.client, served.entry = None, replace(served.entry, opener=None)
        return original(self, waiting, entry)

    original = Opening._open_here
    patch.setattr(Opening, "_open_here", open_here)


def wrong_placement(patch: Patch) -> None:
    def next_daemon(after: int, count: int, candidates: Any, size: int, exclude: Any = ()) -> int | None:
        return original((after + 1) % count, count, candidates, size, {after, *exclude})

    original = placement.next_daemon
    patch.setattr(new_region, "next_daemon", next_daemon)


def space_leak(patch: Patch) -> None:
    """Every freed block leaves a few bytes counted as used for ever."""

    def give_back(self: RegionSpace, block: Block) -> Step:
        step = original(self, block)
        self.free_bytes -= 16
        return step

    original = RegionSpace._give_back
    patch.setattr(RegionSpace, "_give_back", give_back)


def checksum_ignored(patch: Patch) -> None:
    def message(self: FrameReader[RegionMessage], number: int, crc: int, body: memoryview) -> RegionMessage:
        return original(self, number, zlib.crc32(body), body)

    original = FrameReader._message
    patch.setattr(FrameReader, "_message", message)


def early_memory_accounting(patch: Patch) -> None:
    """The memory of a copy counts as free before it is freed."""

    def free(self: Copies, name: str) -> None:
        copy = self._by_name.pop(name)
        self.used_bytes -= copy.size
        self.unfollow(name)

    patch.setattr(Copies, "free", free)


def re_used_epoch(patch: Patch) -> None:
    patch.setattr(directory, "dropped", lambda entry: replace(entry, secondary=None))


def partial_resilver_promoted(patch: Patch) -> None:
    def copy_chunks(self: Follower, copy: RegionCopy, epoch: int, budget: ResilverBudget) -> None:
        original(self, copy, epoch, budget)
        if self.acked and self.state is FollowerState.COPYING:
            self._copied()

    original = Follower.copy_chunks
    patch.setattr(Follower, "copy_chunks", copy_chunks)


def delete_resurrected(patch: Patch) -> None:
    """The map forgets some objects whose blocks stay in the region."""

    def plan_delete(self: InstanceCore, handle: int) -> Planned:
        planned = original(self, handle)
        return [(region, []) for region, _ in planned] if handle % 8 == 0 else planned

    original = InstanceCore.plan_delete
    patch.setattr(InstanceCore, "plan_delete", plan_delete)


LOST = r"was acknowledged as|is there, but was deleted"
BYTES = r"was acknowledged as|is there, but was deleted|differ|begins here|does not match its checksum"
TWO = r"opened what .* has open|which .* opened at epoch|another client has the store"
UPDATE = r"was used before|replaced without being removed|opened what|not its primary"

PLANTED = (
    Planted("acknowledge before the copy", LOST, acknowledge_before_the_copy),
    Planted("no fence", r"answered client\d for .*, which|another client has the store", no_fence),
    Planted("resilver from a stale copy", BYTES, resilver_from_a_stale_copy),
    Planted("lost directory update", UPDATE, lost_directory_update),
    Planted("double open", TWO, double_open),
    Planted("wrong placement", r"the second copy belongs on daemon", wrong_placement),
    Planted("space leak", r"bytes are free, .* are known to be", space_leak),
    Planted("checksum ignored", BYTES, checksum_ignored),
    Planted(
        "early memory accounting", r"counts .* bytes and holds|the limit is|is taken twice", early_memory_accounting
    ),
    Planted("re-used epoch", r"epoch \d+ was used before", re_used_epoch),
    Planted("partial resilver promoted", BYTES, partial_resilver_promoted),
    Planted("absent directory", r"is listed and has no copy|has no living copy|could not open", absent_directory),
    Planted("delete resurrected", r"is there, but was deleted or never written", delete_resurrected),
)
