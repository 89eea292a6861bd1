"""A bug that a patch plants in this process, and the seed of a model that notices it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class PlantedPatch:
    """`text`: a pattern that the violation must match. `often`: actions that the bug takes, ten times as often as usual.
    `seed`: the one that found it last time, tried first; set it where the search takes seconds."""

    name: str
    text: str
    plant: Callable[[Patch], None]
    often: tuple[str, ...] = ()
    seed: int | None = None

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def first_violation(planted: PlantedPatch, run: Callable[[int], object], seeds: Sequence[int]) -> tuple[int, str]:
    """The first of the seeds that fails, and how."""
    for seed in seeds if planted.seed is None else (planted.seed, *seeds):
        try:
            run(seed)
        except Exception as violation:  # noqa: BLE001 - the code under test may be the one that notices
            return seed, f"{type(violation).__name__}: {violation}"
    pytest.fail(f"{planted.name}: not found in {len(seeds)} seeds")
