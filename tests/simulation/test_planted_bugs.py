"""Each planted bug is caught, by the promise that it breaks (R7-R12, R14, R18). `make planted` prints the table."""

from __future__ import annotations

import pytest

from tests.models.planted.bug import Edit, Planted
from tests.models.planted.equivalent import EQUIVALENT
from tests.models.planted.in_regions import PLANTED
from tests.models.planted.planting import MOST_SEEDS, PlantingError, catch, planted_files

LEAST = 40


@pytest.mark.parametrize("planted", PLANTED, ids=str)
def test_planted_bug_is_caught(planted: Planted) -> None:
    """R7-R12, R14, R18: within 2,000 seeds, or by the test that it names; the seeds that found it last come first."""
    caught = catch(planted, MOST_SEEDS)
    assert not caught.failure


@pytest.mark.parametrize("planted", [*PLANTED, *EQUIVALENT], ids=str)
def test_planted_bug_fits_its_files(planted: Planted) -> None:
    """R7-R12: a line that was moved or changed is an error here, so no bug is skipped unnoticed."""
    for file, text in planted_files(planted).items():
        compile(text, file, "exec")


def test_planted_bug_is_an_error_once_its_line_has_changed() -> None:
    """R7-R12"""
    gone = Planted("gone", "", (Edit("store/regions/core/peers.py", "no such line", ""),))
    with pytest.raises(PlantingError, match="has 0 times, not once"):
        planted_files(gone)


def test_enough_bugs_are_planted() -> None:
    """R7-R12: each under its own name."""
    assert len(PLANTED) >= LEAST
    assert len({planted.name for planted in (*PLANTED, *EQUIVALENT)}) == len(PLANTED) + len(EQUIVALENT)
