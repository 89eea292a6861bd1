"""Narrowing a failing batch of several servers to its poison message. core/poison.py has the rule, isolation.py the
part of one server.

Each server that has messages of the batch keeps a copy of its trial:

    partitions, a replay   `attempt`: one more attempt, of the newest copy. Every copy is written before a part is delivered
    stop                   `fail`: the failure is noted in the copies that can be reached
    latestOffset           each server acknowledges by its own copy, so also one that was away and answers later. The rest is
                           claimed again once all its servers answer

    a write reaches some copies only   then
    --------------------------------   ----
    of an attempt                      nothing was delivered; the query fails, and the next replay reads all copies: the newest
                                       one has an attempt without an outcome, like one whose driver died. It narrows nothing
    of a failure                       the newest copy has it
    of the claim of the rest           nothing was delivered; the claim is like one that Spark has not logged, and the rest is
                                       claimed once more on all its servers

The convicted message is set aside first, together with its own server's copy, and the others are written then.

Features: M4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from spark_jms.claims.isolation import tell, tell_failure
from spark_jms.claims.previous_batch import ProtectedPart
from spark_jms.core.poison import Messages, Trial, failed, joined, newest, replayed


class Attempt(NamedTuple):
    """`stored`: the trial has to be written before anything is delivered. `convicted` is set aside; it had failed so often."""

    trial: Trial
    present: Messages
    stored: bool
    convicted: Messages
    failures: int


class DistributedIsolation:
    """Of one query, whose subscriber writes the copies and guards this with its lock. `narrows`: see Isolation."""

    def __init__(self, name: str, *, narrows: bool) -> None:
        self._name, self._narrows = name, narrows
        self._begun: Trial | None = None  # the attempt that runs in this process
        self._claimed: Trial | None = None  # the newest one whose messages this process has claimed again
        self._own: set[str] = set()  # claims that this process has made, or has delivered

    @property
    def runs(self) -> bool:
        """An attempt has begun, and Spark has not asked for the next batch."""
        return self._begun is not None

    def claimed(self, start: str, claim: str, trial: Trial | None) -> None:
        """A batch was made. `trial`: its messages are the rest of an earlier one."""
        self._own, self._claimed = {start, claim}, trial

    def ends(self, claim: str) -> None:
        """Spark asks for the batch after `claim`: the attempt has succeeded."""
        if self._begun is not None and self._begun.claim == claim:
            self._begun = None

    def attempt(self, claim: str, parts: Mapping[str, ProtectedPart], unseen: Messages) -> Attempt:
        """The attempt of a batch that is to be delivered. `unseen`: its messages on servers that are away, which it was seen to
        claim a moment ago."""
        present = unseen
        for part in parts.values():
            present = joined(present, part.present)
        copies = [copy for copy in (self._claimed, *(part.trial for part in parts.values())) if copy]
        trial = newest(copy for copy in copies if copy.claim == claim) or Trial(claim, present)
        if claim in self._own:
            return Attempt(trial, present, False, {}, 0)
        before = trial.within(present)
        after, convicted = replayed(before, narrows=self._narrows)
        if after.tried != before.tried:
            tell(self._name, after)
        return Attempt(after, present, True, convicted, before.failures)

    def begin(self, attempt: Attempt) -> None:
        """Its copies are written."""
        self._begun = attempt.trial
        self._own.add(attempt.trial.claim)

    def fail(self) -> Trial | None:
        """Spark has given up the batch whose attempt runs: the trial to write, if any."""
        if self._begun is None or not self._narrows:
            return None
        trial, self._begun = failed(self._begun), None
        tell_failure(self._name, trial)
        return trial
