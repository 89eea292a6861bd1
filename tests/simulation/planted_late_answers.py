"""Bugs to plant in what a daemon makes of an answer of the directory that is older than what it decides (planted.py)."""

from __future__ import annotations

from tests.simulation.planted_bug import LOSS, by_test, core

LATE_ANSWERS = (
    core(
        "a copy that a primary fills is freed for a new region",
        "opening.py",
        LOSS + "|CONTINUES",
        "if seen.known and seen.entry is None and self._shared.copies.heard_since(waiting.name, asked_ms):",
        "if False:",
    ),
    by_test(
        "a copy counts as complete when the directory lists it",
        "core/primary.py",
        "tests/unit/test_regions_late_answers.py",
        "if follower.holder == entry.secondary and (follower.in_sync or follower.may_join):",
        "if follower.holder == entry.secondary:",
    ),
    by_test(
        "a copy that was filled since the directory was asked is given up",
        "core/reconciliation.py",
        "tests/unit/test_regions_late_answers.py",
        "elif self._shared.copies.heard_since(name, asked_ms):",
        "elif False:",
    ),
    core(
        "an answer before a change that waits ends a doubt",
        "primary.py",
        "REFUSES",
        "if not self._under_way:  # otherwise",
        "if self.state is not PrimaryState.CHANGING:  # otherwise",
    ),
    core(
        "an entry that was read before its daemons ended makes a region lost",
        "opening.py",
        "LOST",
        "if outcome is Outcome.DONE and waiting in self._waiting:  # otherwise the next tick asks again",
        "if waiting in self._waiting:",
    ),
    by_test(
        "a daemon that ended lists a copy of a region that the log calls lost",
        "core/lost_regions.py",
        "tests/unit/test_regions_lost.py",
        "if entry.epoch == 1:",
        "if True:",
    ),
)
