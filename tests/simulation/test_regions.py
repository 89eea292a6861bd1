"""Two thousand clusters: daemons' cores and real clients of the region store in the simulator, under all kinds of faults.

The seeds are the same in every run, so one commit has one result. New seeds are looked for by `make sim SEEDS=100000` and by
`make soak`. To replay a seed that failed: `python -m tests.models.regions --seeds 1 --first SEED --trace`; then add it to KEPT.
JMSQ_SEEDS and JMSQ_FIRST_SEED set how many seeds these tests run, and the first one.
"""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from tests.models.regions import SeedOutcome, World, run

PROCESSES = 2
REPLAY = "python -m tests.models.regions --seeds 1 --first {} --trace"

# seed -> why it failed. The ones before the real client came in have direct tests of their own
KEPT = {
    910093950: "a primary answered its client while an administrator removed the region, whose entry was damaged, by force",
    910060846: "a primary dropped its second copy, and meanwhile took an older answer for the end of its doubt, and acknowledged",
    910068074: "the same, among four daemons: the change waited for a read of 600 ms",
    910019531: "an open with an old entry called a region lost; the late change of a dead primary listed its second copy",
    910052859: "the same, after a primary that listed another copy and died",
    910016253: "an old answer that there is no region made a daemon free the second copy of the region that had come meanwhile",
    910047157: "an unanswered change listed a copy late that was removed by then, and ended the daemon",
    910021879: "the directory hung beyond the end of the faults, and the end was judged before its answers",
    910013090: "a daemon that stood still logs the loss of a region whose name belongs to another one by now: a true line",
}


def attempt(seed: int) -> SeedOutcome | str:
    """Runs in a process of its own, and returns any error as text."""
    try:
        return run(seed)
    except Exception as error:  # noqa: BLE001 - any error belongs to its seed
        return f"seed {seed}: {type(error).__name__}: {error}\n  replay: {REPLAY.format(seed)}"


@pytest.mark.parametrize("seed", KEPT)
def test_world_passes_a_seed_that_failed_once(seed: int) -> None:
    """R7-R12, R15: KEPT says why it failed."""
    assert isinstance(run(seed), SeedOutcome)


def test_world_does_the_same_for_the_same_seed() -> None:
    """R7-R12: a failure can be replayed."""
    first, second = World(4711), World(4711)
    assert first.run() == second.run()
    assert first.cluster.directory.entries == second.cluster.directory.entries


@pytest.mark.timeout(3600)  # at the lowest priority
def test_world_passes_seeds() -> None:
    """R7-R12, R15, R17, R18: clients read acknowledged writes while one copy lives; a region has one opener; daemons
    acknowledge nothing at an old epoch; copies are equal; memory stays within the limit; the second copy comes back;
    deleted objects stay deleted."""
    first, seeds = int(os.environ.get("JMSQ_FIRST_SEED", "1")), int(os.environ.get("JMSQ_SEEDS", "2000"))
    check_seeds(first, seeds)


@pytest.mark.soak
def test_world_passes_new_seeds() -> None:
    """R7-R12, R15, R17, R18: the same, with other seeds in every run."""
    first = int(os.environ.get("JMSQ_FIRST_SEED", time.time_ns() // 1000 % 1_000_000_000))
    check_seeds(first, int(os.environ.get("JMSQ_SEEDS", "20000")))


def check_seeds(first: int, seeds: int) -> None:
    print(f"replay: JMSQ_FIRST_SEED={first} JMSQ_SEEDS={seeds} pytest tests/simulation/test_regions.py")
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        outcomes = pool.map(attempt, range(first, first + seeds), chunksize=20)
    failures = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert not failures, "\n".join(failures)
    done = [outcome for outcome in outcomes if isinstance(outcome, SeedOutcome)]
    assert sum(outcome.acks for outcome in done) > 200 * seeds
    assert sum(outcome.recoveries for outcome in done) > 4 * seeds
    if seeds >= 500:  # the faults are effective: some regions lose both copies where that is allowed
        assert sum(outcome.lost for outcome in done) > 0
