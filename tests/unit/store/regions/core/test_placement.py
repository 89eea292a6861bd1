"""Which daemon gets a copy (R4, R9, R10)."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.regions.core.peers import Candidate, HeldCopies, fits_without, next_daemon

COUNT = 6
CANDIDATES = st.dictionaries(
    st.integers(0, COUNT - 1), st.tuples(st.integers(0, 4), st.booleans()), max_size=COUNT
).map(lambda found: {i: Candidate(i, free, draining) for i, (free, draining) in found.items()})


@given(st.integers(0, COUNT - 1), CANDIDATES, st.integers(1, 4), st.sets(st.integers(0, COUNT - 1)))
def test_next_daemon_is_the_nearest_with_room(
    after: int, candidates: dict[int, Candidate], size: int, exclude: set[int]
) -> None:
    """R9: in the order of the file, wrapping, and never the primary's own daemon or one that is leaving."""
    good = {i for i, c in candidates.items() if not c.draining and c.free_bytes >= size} - exclude - {after}
    found = next_daemon(after, COUNT, candidates, size, exclude)
    assert found == min(good, key=lambda index: (index - after) % COUNT, default=None)


COPIES = st.lists(st.tuples(st.integers(1, 3), st.sets(st.integers(0, 3), min_size=1, max_size=2)), max_size=4)


@given(st.sets(st.integers(0, 3), min_size=1, max_size=2), COPIES, CANDIDATES)
def test_allowed_shutdown_has_room_for_every_copy(
    leaving: set[int], copies: list[tuple[int, set[int]]], candidates: dict[int, Candidate]
) -> None:
    """R4, step 2: a shutdown may be refused although there is room, because sizes are packed greedily."""
    asked = {f"r{n}": HeldCopies(size, tuple(sorted(holders))) for n, (size, holders) in enumerate(copies)}
    if fits_without(leaving, asked, candidates):
        assert possible(
            leaving, list(asked.values()), {i: c.free_bytes for i, c in candidates.items() if not c.draining}
        )


def possible(leaving: set[int], copies: list[HeldCopies], free: dict[int, int]) -> bool:
    """Tries every placement."""
    if not copies:
        return True
    (size, holders), *rest = copies
    stay = [index for index in holders if index not in leaving]
    open_to = [index for index in free if index not in leaving and index not in stay]
    for chosen in permutations(open_to, len(holders) - len(stay)):
        if all(free[index] >= size for index in chosen):
            less = {index: room - size * (index in chosen) for index, room in free.items()}
            if possible(leaving, rest, less):
                return True
    return False
