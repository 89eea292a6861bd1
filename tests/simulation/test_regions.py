"""Two thousand clusters: the core of the region store in the simulator, under all kinds of faults.

The seeds are the same in every run, so one commit has one result. New seeds are looked for by `make sim SEEDS=100000` and by
`make soak`. To replay a seed that failed: `python -m tests.simulator --seeds 1 --first SEED --trace`; then add it to KEPT.
JMSQ_SEEDS and JMSQ_FIRST_SEED set how many seeds these tests run, and the first one.
"""

from __future__ import annotations

import multiprocessing
import os
import time

import pytest

from tests.simulator import SeedOutcome, World, run
from tests.simulator.faults import Fault

PROCESSES = 2
REPLAY = "python -m tests.simulator --seeds 1 --first {} --trace"

KEPT = {
    181: "both first frames of a connection were lost, and neither daemon gave it up",
    317: "a store that was creating its third region counted as closed",
    332: "a primary did not know its own move, and freed a listed copy",
    20625: "writes without an answer when a region was lost",
    70266959: "a primary that was not told of a removal continued to serve",
    60004: "an object moving out of a region that was removed",
    550138815: "a region created, removed, and created again with the same id by a daemon that had no answer",
    764885021: "a region removed after its client had read it and before it wrote to it",
    764885032: "the same, and created again",
    10167: "a daemon took an earlier life of itself for a peer",
    500001591: "a late write created a region at the moment in which its daemon left",
    327473385: "the simulator: an object moving out of a removed region stayed in doubt after its write was acknowledged",
    500001265: "the simulator: a read that was answered late made a fenced client the owner of its store",
    600000991: "a daemon that created a region without an answer took it for its own after another one had taken it over",
    600000964: "the same as 600000063",
    600000063: "a Begin that had waited for its directory freed the copy that a later one had filled and listed",
    400000417: "a daemon without room for two copies renounced one, the primary did not know, and so on for ever",
    327474177: "a primary that was fenced while it adopted its entry tried to close the region",
}


def attempt(seed: int) -> SeedOutcome | str:
    """Runs in a process of its own, and returns any error as text."""
    try:
        return run(seed)
    except Exception as error:  # noqa: BLE001 - any error belongs to its seed
        return f"seed {seed}: {type(error).__name__}: {error}\n  replay: {REPLAY.format(seed)}"


@pytest.mark.parametrize("seed", KEPT)
def test_world_passes_a_seed_that_failed_once(seed: int) -> None:
    """R7-R12, R15: KEPT says why it failed. Younger faults would change its course."""
    assert isinstance(run(seed, without=frozenset({Fault.EMPTY})), SeedOutcome)


def test_world_does_the_same_for_the_same_seed() -> None:
    """R7-R12: a failure can be replayed."""
    first, second = World(4711), World(4711)
    assert first.run() == second.run()
    assert first.cluster.directory.entries == second.cluster.directory.entries


@pytest.mark.timeout(900)
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
