"""Bugs to plant in what a daemon makes of an answer of the directory that is older than what it decides (in_regions.py)."""

from __future__ import annotations

from tests.models.planted.bug import LOSS, by_test, core

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
        "tests/unit/store/regions/core/test_late_answers.py",
        "complete = listed is None or listed.in_sync or listed.may_join",
        "complete = True",
    ),
    by_test(
        "a copy that was filled since the directory was asked is given up",
        "core/replicas.py",
        "tests/unit/store/regions/core/test_late_answers.py",
        "elif self._shared.copies.heard_since(name, asked_ms):",
        "elif False:",
    ),
    core(
        "an answer before a change that waits ends a doubt",
        "primary_state.py",
        "REFUSES|FENCED|ONE_OPENER",
        "StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CONFIRMED, _CHANGING_IN_DOUBT, _OLDER)",
        "StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CONFIRMED, _SERVING, _ADOPTS)",
        test="tests/unit/store/regions/core/test_late_answers.py::test_answer_before_a_change_that_waits_does_not_end_a_doubt",
    ),
    by_test(
        "a doubt that arises during a change ends with the change",
        "core/primary_state.py",
        "tests/unit/store/regions/core/test_primary.py::test_doubt_during_a_change_lasts_beyond_it",
        "    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CHANGED, _IN_DOUBT,",
        "    StateTransition(_CHANGING_IN_DOUBT, PrimaryEvent.CHANGED, _SERVING,",
    ),
    by_test(
        "a region that was lost meanwhile is given to the client that waits for it",
        "core/primary_state.py",
        "tests/unit/store/regions/core/test_primary.py::test_region_lost_while_the_others_are_confirmed_is_not_given",
        "        client, self.client = self.client, None\n        then, self._then = self._then if",
        "        client = self.client\n        then, self._then = self._then if",
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
        "core/replicas.py",
        "tests/unit/store/regions/core/test_lost.py",
        "if entry.epoch == 1:",
        "if True:",
    ),
)
