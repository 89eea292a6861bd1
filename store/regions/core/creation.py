"""Bringing a new region into the directory: its second place, then its entry (R9). Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Holder, RegionEntry
from spark_jms.store.regions.core.placement import next_daemon
from spark_jms.store.regions.core.shared import Shared


@dataclass(frozen=True)
class Entered:
    """`entry` is None when the region is not in the directory; then `refused` says why, or is "" to try again."""

    entry: RegionEntry | None
    refused: str = ""


class Creation:
    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._told = False  # the directory was asked for the entry once, and did not answer

    def second_place(self, size: int, exclude: Collection[int]) -> Holder | None:
        peers = self._shared.peers
        target = next_daemon(peers.me.daemon, peers.count, peers.candidates(), size, exclude)
        return peers.holder_of(target) if target is not None else None

    def enter(self, draft: RegionEntry, secondary: Holder | None) -> Entered:
        """Asked once and not answered, the entry may have been made and removed again: its id and epoch are used up."""
        directory, me = self._shared.directory, self._shared.me
        entry = rules.created(draft.name, draft.region_id, draft.size, me, secondary, draft.created_us)
        done = None if self._told else directory.swap(draft.name, None, entry)
        if done:
            return Entered(entry)
        self._told = self._told or done is None
        known, found = directory.look(draft.name)
        if not known or (found is None and not self._told):
            return Entered(None)
        if found is None:
            return Entered(None, "it may have been removed again")
        if found.region_id != draft.region_id:
            return Entered(None, "another daemon made it")
        return Entered(found)
