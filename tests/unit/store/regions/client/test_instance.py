"""Objects across regions: planned, written, interrupted, read back (R7, R12, R14)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import ObjectNotFoundError, ObjectTooLargeError, RegionFullError
from spark_jms.store.regions.client import space as instances
from spark_jms.store.regions.client.space import InstanceCore, Planned
from tests.harness.stores.regions_instances import apply, apply_all, blocks_of, check_row, payload_of

SIZE = 2048
KINDS = st.sampled_from(["create", "create", "update", "update", "delete", "free", "reopen"])
OPERATIONS = st.lists(st.tuples(KINDS, st.integers(0, 1000), st.integers(0, 900)), max_size=60)


class Store:
    """An instance with its regions in memory, for one client after another."""

    def __init__(self, regions: int) -> None:
        self.core = InstanceCore()
        self.memories = {f"r{n}": bytearray(SIZE) for n in range(regions)}
        for name in self.memories:
            apply(self.memories[name], self.core.add_region(name, SIZE))

    def reopen(self) -> None:
        self.core = InstanceCore()
        for name, memory in self.memories.items():
            self.core.load_region(name, SIZE, blocks_of(name, memory))
        apply_all(self.memories, self.core.recovered())

    def objects(self) -> dict[int, bytes]:
        found = {}
        for handle in self.core.places:
            region, block = self.core.where(handle)
            found[handle] = payload_of(self.memories[region], block)
        return found

    def check(self) -> None:
        for name, memory in self.memories.items():
            check_row(self.core.regions[name], memory)


@given(st.integers(1, 3), OPERATIONS)
def test_objects_survive_moves_and_reopening(regions: int, operations: list[tuple[str, int, int]]) -> None:
    """R7, R12: with their last value, also when the old block of a moved object becomes free later, or not before a crash; the
    core never gives a handle out twice."""
    store, objects, given_out = Store(regions), dict[int, bytes](), set[int]()
    leftovers: list[tuple[str, int]] = []

    def free_leftovers() -> None:
        for leftover in leftovers:
            apply_all(store.memories, store.core.plan_forget(*leftover))
        leftovers.clear()

    for number, (what, which, length) in enumerate(operations):
        payload, known = bytes([number]) * length, list(objects)
        try:
            if what == "reopen":
                leftovers.clear()
                store.reopen()
            elif what == "free":
                free_leftovers()
            elif what == "create":
                handle, planned = store.core.plan_create(1, payload)
                assert handle not in given_out, "a handle was given out twice"
                given_out.add(handle)
                apply_all(store.memories, planned)
                objects[handle] = payload
            elif known and what == "update":
                handle = known[which % len(known)]
                planned, leftover = store.core.plan_update(handle, payload)
                apply_all(store.memories, planned)
                if leftover is not None:
                    leftovers.append((leftover, handle))
                objects[handle] = payload
            elif known and what == "delete":
                handle = known[which % len(known)]
                free_leftovers()  # a deletion is acknowledged after the update before it
                apply_all(store.memories, store.core.plan_delete(handle))
                del objects[handle]
        except RegionFullError:
            pass
        store.check()
        assert store.objects() == objects


def test_handle_is_not_reused_when_its_block_was_overwritten() -> None:
    """R7: only one free block recorded the last handle, and an update took its place."""
    store = Store(1)
    first, planned = store.core.plan_create(1, b"a" * 16)
    apply_all(store.memories, planned)
    rest = store.core.regions["r0"].free_bytes - 32
    last, planned = store.core.plan_create(1, b"b" * rest)
    apply_all(store.memories, planned)
    apply_all(store.memories, store.core.plan_delete(last))
    apply_all(store.memories, store.core.plan_update(first, b"c" * rest)[0])
    store.reopen()
    apply_all(store.memories, store.core.plan_delete(first))
    assert store.core.plan_create(1, b"")[0] > last


def moved() -> tuple[Store, int, Planned, str]:
    """An update that moves an object to another region, planned and not yet written."""
    store = Store(2)
    handle, planned = store.core.plan_create(1, b"old" * 100)
    apply_all(store.memories, planned)
    _, planned = store.core.plan_create(1, b"x" * 1400)
    apply_all(store.memories, planned)
    planned, leftover = store.core.plan_update(handle, b"new" * 300)
    assert leftover == "r0"
    assert [region for region, _ in planned] == ["r1"]
    return store, handle, planned, leftover


@pytest.mark.parametrize(("written", "expected"), [(0, b"old" * 100), (1, b"new" * 300), (2, b"new" * 300)])
def test_move_is_atomic_across_a_crash(written: int, expected: bytes) -> None:
    """R7: with a crash before, between and after its two writes; the space of the stale block becomes free."""
    store, handle, planned, leftover = moved()
    if written > 0:
        apply_all(store.memories, planned)
    if written > 1:
        apply_all(store.memories, store.core.plan_forget(leftover, handle))
    store.reopen()
    assert store.objects()[handle] == expected
    store.check()
    assert sum(handle in space.used for space in store.core.regions.values()) == 1


def test_later_block_wins_in_any_order_of_regions() -> None:
    """R7: of two blocks with one handle the later one counts, not the one that is read last."""
    store, handle, planned, _ = moved()
    apply_all(store.memories, planned)
    store.memories = dict(reversed(store.memories.items()))
    store.reopen()
    assert store.objects()[handle] == b"new" * 300


def test_long_compaction_is_planned_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """R7, R12: for a new object and for an update; in between other objects come and go."""
    monkeypatch.setattr(instances, "COMPACTION_MOVES", 2)
    store, objects = Store(1), dict[int, bytes]()

    def add(payload: bytes) -> int:
        handle, planned = store.core.plan_create(1, payload)
        apply_all(store.memories, planned)
        objects[handle] = payload
        return handle

    def remove(handle: int) -> None:
        apply_all(store.memories, store.core.plan_delete(handle))
        del objects[handle]

    handles = [add(bytes([number]) * 32) for number in range(28)]
    for handle in handles[::2]:
        remove(handle)
    parts = 0
    while planned := store.core.plan_compaction(600):
        assert len(planned[0][1]) <= 4
        apply_all(store.memories, planned)
        store.check()
        assert store.objects() == objects
        parts += 1
        if parts == 2:
            remove(handles[1])
    assert 2 < parts < 10
    large = add(b"x" * 600)
    assert store.core.plan_compaction(600, large) == []
    assert store.objects() == objects


def test_objects_that_do_not_fit_are_refused() -> None:
    """R7: an object larger than any region, a full store, an unknown handle; the store does not change."""
    store = Store(1)
    with pytest.raises(ObjectTooLargeError):
        store.core.plan_create(1, bytes(SIZE))
    apply_all(store.memories, store.core.plan_create(1, bytes(1500))[1])
    with pytest.raises(RegionFullError):
        store.core.plan_create(1, bytes(1000))
    store.check()
    with pytest.raises(ObjectNotFoundError):
        store.core.plan_delete(99)
    with pytest.raises(ObjectNotFoundError):
        store.core.plan_update(99, b"")


def test_object_does_not_return_to_a_region_that_still_has_its_old_block() -> None:
    """R7: the freeing of the old block is on its way, and would free the new one."""
    store, handle, planned, leftover = moved()
    apply_all(store.memories, planned)
    _, planned = store.core.plan_create(1, b"y" * 900)
    apply_all(store.memories, planned)
    apply_all(store.memories, store.core.plan_delete(handle + 1))
    with pytest.raises(RegionFullError, match="still being moved"):
        store.core.plan_update(handle, b"back" * 250)
    apply_all(store.memories, store.core.plan_forget(leftover, handle))
    assert store.objects()[handle] == b"new" * 300


def test_order_of_writes_continues_after_an_opening() -> None:
    """R7: an object moves after it, and a crash leaves both blocks: the later value wins."""
    store = Store(2)
    handle, planned = store.core.plan_create(1, b"old" * 100)
    apply_all(store.memories, planned)
    _, planned = store.core.plan_create(1, b"x" * 1400)
    apply_all(store.memories, planned)
    for number in range(5):
        planned, leftover = store.core.plan_update(handle, bytes([number]) * 300)
        apply_all(store.memories, planned)
        assert leftover is None
    store.reopen()
    planned, leftover = store.core.plan_update(handle, b"new" * 300)
    assert leftover == "r0"
    apply_all(store.memories, planned)
    store.reopen()
    assert store.objects()[handle] == b"new" * 300
