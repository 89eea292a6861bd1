"""Two thousand new clusters in every run: the replicated store's core in the simulator, under all faults at once.

A seed that failed: `python -m tests.simulator --seeds 1 --first SEED --trace`; then it is kept in KEPT.
More of them: `make sim SEEDS=100000`. JMSQ_SEEDS and JMSQ_FIRST_SEED choose how many and which in this test.
"""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from tests.simulator import SeedOutcome, World, run

PROCESSES = 2
REPLAY = "python -m tests.simulator --seeds 1 --first {} --trace"

KEPT = {
    181: "both first frames of a connection were lost, and nobody gave it up",
    317: "a store that was making its third region counted as closed",
    332: "a primary did not know its own move, and freed a listed copy",
    20625: "what was under way when a region was lost",
    70266959: "a primary that nobody told of the removal served on",
    60004: "an object on its way out of a region that was removed",
    550138815: "a region made, removed, and made again with the same id by a maker who had no answer",
    764885021: "a region removed between its reading and its use",
    764885032: "the same, and made again",
    10167: "an earlier life of the daemon itself was taken for a peer",
    500001591: "a region that was made by a late write in the very moment in which its maker left",
}


def attempt(seed: int) -> SeedOutcome | str:
    """In a process of its own; whatever was raised, as text."""
    try:
        return run(seed)
    except Exception as error:  # noqa: BLE001 - whatever went wrong belongs to the seed
        return f"seed {seed}: {type(error).__name__}: {error}\n  replay: {REPLAY.format(seed)}"


@pytest.mark.parametrize("seed", KEPT)
def test_a_seed_that_failed_once(seed: int) -> None:
    """R7-R12, R15: see KEPT for what it was."""
    assert isinstance(run(seed), SeedOutcome)


def test_one_seed_is_one_run() -> None:
    """R7-R12: a failure can be replayed."""
    first, second = World(4711), World(4711)
    assert first.run() == second.run()
    assert first.cluster.directory.entries == second.cluster.directory.entries


@pytest.mark.timeout(900)
def test_new_seeds() -> None:
    """R7-R12, R15, R17, R18: acknowledged writes are read while one copy lives; one opener; nothing acknowledged at an old
    epoch; copies equal; memory within the limit; the second copy comes back; what is deleted stays deleted."""
    seeds = int(os.environ.get("JMSQ_SEEDS", "2000"))
    first = int(os.environ.get("JMSQ_FIRST_SEED", time.time_ns() // 1000 % 1_000_000_000))
    print(f"replay: JMSQ_FIRST_SEED={first} JMSQ_SEEDS={seeds} pytest tests/simulation/test_regions.py")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        outcomes = pool.map(attempt, range(first, first + seeds), chunksize=20)
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert not failures, "\n".join(failures)
    done = [outcome for outcome in outcomes if isinstance(outcome, SeedOutcome)]
    assert sum(outcome.acks for outcome in done) > 200 * seeds
    assert sum(outcome.recoveries for outcome in done) > 4 * seeds
    if seeds >= 500:  # the faults do bite: some regions lose both copies where that is allowed
        assert sum(outcome.lost for outcome in done) > 0
