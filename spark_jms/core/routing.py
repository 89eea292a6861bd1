"""Routing: the member that a message goes to (C4, D2).

A unit of order (JMSXGroupID) hashes to one of 1,024 slots, and a slot belongs to one member, so its messages stay in
order. Other messages go round robin, at random or by weight. Round robin splits a batch into equal consecutive shares,
which balances as well as single messages do and copies no bodies.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.settings.destination import POLICIES

SLOTS = 1024


@dataclass(frozen=True)
class Routing:
    """The route of one destination. `epoch` rises with every change, so that a send notices that its route is old."""

    epoch: int
    members: int
    policy: str = "round-robin"
    weights: tuple[int, ...] = ()
    slot_members: int = 0  # the first so many members share the slots; 0 = all

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError("a destination has at least 1 member")
        if self.policy not in POLICIES:
            raise ValueError(f"routing is one of {', '.join(POLICIES)}, not {self.policy!r}")
        if self.policy == "weighted" and (len(self.weights) != self.members or not sum(self.weights)):
            raise ValueError(f"weighted routing needs {self.members} weights, not all 0")

    def slot_table(self) -> npt.NDArray[np.int32]:
        """slot -> member. Members added later get no slots: a unit of order never changes its member."""
        return (np.arange(SLOTS) % (self.slot_members or self.members)).astype(np.int32)


def slots_of(group_ids: pa.Array) -> npt.NDArray[np.int32]:
    """The slot of each group id, -1 for null. Hashes each distinct id once."""
    encoded = pc.dictionary_encode(group_ids)
    slots = np.array(
        [zlib.crc32(value.encode()) % SLOTS for value in encoded.dictionary.to_pylist()] + [-1], dtype=np.int32
    )
    return slots[np.asarray(pc.fill_null(encoded.indices, len(slots) - 1))]


def route(routing: Routing, group_ids: pa.Array, turn: int) -> npt.NDArray[np.int32]:
    """The member of each row. Round robin starts at `turn`, which also seeds the random policies: the same batch with the
    same turn takes the same route."""
    rows = len(group_ids)
    free = _free_members(routing, rows, turn)
    if group_ids.null_count == rows:
        return free
    slots = slots_of(group_ids)
    return np.where(slots >= 0, routing.slot_table()[slots], free).astype(np.int32)


def _free_members(routing: Routing, rows: int, turn: int) -> npt.NDArray[np.int32]:
    if routing.members == 1:
        return np.zeros(rows, dtype=np.int32)
    if routing.policy == "round-robin":
        share = (np.arange(rows, dtype=np.int64) * routing.members) // max(rows, 1)
        return ((share + turn) % routing.members).astype(np.int32)
    generator = np.random.Generator(np.random.Philox(key=turn % 2**64))
    if routing.policy == "random":
        return generator.integers(0, routing.members, rows).astype(np.int32)
    weights = np.array(routing.weights, dtype=float)
    return generator.choice(routing.members, rows, p=weights / weights.sum()).astype(np.int32)


def split(batch: pa.RecordBatch, members: npt.NDArray[np.int32]) -> list[tuple[int, pa.RecordBatch]]:
    """(member, its rows in order). Consecutive shares are slices of the batch; other rows are copied once."""
    if not batch.num_rows:
        return []
    changes = np.flatnonzero(np.diff(members)) + 1
    runs = members[np.concatenate(([0], changes))]
    if len(set(runs.tolist())) < len(runs):
        order = np.argsort(members, kind="stable")
        batch, members = batch.take(pa.array(order)), members[order]
        changes = np.flatnonzero(np.diff(members)) + 1
    bounds = [0, *changes.tolist(), batch.num_rows]
    return [(int(members[lo]), batch.slice(lo, hi - lo)) for lo, hi in itertools.pairwise(bounds)]
