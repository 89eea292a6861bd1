"""Bugs to plant in what several servers do together, one at a time. The model of test_servers_model.py must notice it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_jms.claims.failures import poison as claims_poison
from spark_jms.claims.failures.poison import TrialCopy
from spark_jms.core.records import poison as core_poison
from spark_jms.core.records.batch import Batch
from spark_jms.core.records.poison import Trial
from tests.models.planted.patch import Patch, PlantedPatch

LOST, POISON, TWICE = r"messages were lost", r"not the poison was set aside", r"a message came twice, and not flagged"


def copies_are_not_written(patch: Patch) -> None:
    patch.setattr(TrialCopy, "keep", lambda self, trial: None)


def server_acknowledges_what_was_withheld(patch: Patch) -> None:
    patch.setattr(TrialCopy, "part", staticmethod(lambda progress, claim, member: None))


def attempt_of_a_dead_driver_counts_as_a_failure(patch: Patch) -> None:
    def replayed(trial: Trial, *, narrows: bool) -> Any:
        return original(core_poison.failed(trial), narrows=narrows)

    original = core_poison.replayed
    patch.setattr(claims_poison, "replayed", replayed)


def carried_messages_are_forgotten(patch: Patch) -> None:
    patch.setattr(Batch, "carried", lambda self, members: {})


def servers_claim_the_rest_unflagged(patch: Patch) -> None:
    def claim_again(self: TrialCopy, progress: Any, *args: Any) -> Any:
        known = progress.trial and replace(progress.trial, flagged=True)
        return original(self, replace(progress, trial=known), *args)

    original = TrialCopy.claim_again
    patch.setattr(TrialCopy, "claim_again", claim_again)


PLANTED_IN_SERVERS = (
    PlantedPatch("copies of a trial are not written", rf"{LOST}|{POISON}", copies_are_not_written),
    PlantedPatch("server acknowledges withheld messages", LOST, server_acknowledges_what_was_withheld),
    PlantedPatch("death of a driver counts as a failure", POISON, attempt_of_a_dead_driver_counts_as_a_failure),
    PlantedPatch("carried messages are forgotten", TWICE, carried_messages_are_forgotten),
    PlantedPatch("rest is claimed unflagged", TWICE, servers_claim_the_rest_unflagged),
)
