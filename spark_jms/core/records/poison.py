"""Poison messages: which part of a failing batch is delivered next, until the poison message is alone.

Spark replays a batch that its sink could not take, with the same offset, until it succeeds. A *trial* of the batch's claim
narrows what the replays deliver. Its messages are in a fixed order, by member and then by sequence:

    |  tried  |            withheld            |
    |       suspects       |   nothing known   |

`tried` is what the batch delivers. The first `suspects` messages hold a poison message, for all that is known; 0: nothing is
known. A unit of order lies in one member and its later messages have higher sequences, so what is withheld of a unit is
always the end of it.

    phase    what is tried                     fails so often   then
    -----    -------------                     --------------   ----
    WHOLE    all messages, nothing is known    twice            narrow: the first half of it
    PART     the first half of the suspects    once             narrow: the first half of it
    ALONE    one message                       twice            convict: the message is set aside, the rest is withheld
    NONE     nothing: the poison is set aside  –                –

When the sink takes the batch, the withheld messages come back as the next batch. Suspects that remain hold the poison
message, so the first half of them is tried; when none remain, all are tried as a new batch would be.

What one batch delivers only shrinks. So a sink that recognises a batch by its number, and has committed an earlier attempt,
has all messages that are acknowledged with a later one. What it has beyond those comes again with the next batch, flagged
as redelivered. Nothing is lost.

Where a batch is of several servers, each of them keeps a copy of the trial, and every copy is written before a part is
delivered. So whatever server acknowledges the batch later knows which part that was. A write of some copies only has
delivered nothing: the newest copy counts, and its attempt has ended with the driver.

An attempt *failed* when Spark stopped the source in the middle of it. When the driver died, nothing is known of the
messages: deaths are counted apart and narrow nothing.

Features: M4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, NamedTuple

from spark_jms.core.messages.ranges import Ranges

Messages = Mapping[int, Ranges]  # member -> its messages


class TrialPhase(Enum):
    WHOLE = auto()
    PART = auto()
    ALONE = auto()
    NONE = auto()


class TrialStep(Enum):
    REPEAT = auto()
    NARROW = auto()
    CONVICT = auto()


class TrialLimit(NamedTuple):
    failures: int
    step: TrialStep


# phase -> after so many failures of the same messages, this step; before, and in a phase that is not here: REPEAT
LIMITS: Mapping[TrialPhase, TrialLimit] = {
    TrialPhase.WHOLE: TrialLimit(2, TrialStep.NARROW),
    TrialPhase.PART: TrialLimit(1, TrialStep.NARROW),
    TrialPhase.ALONE: TrialLimit(2, TrialStep.CONVICT),
}


@dataclass(frozen=True)
class Trial:
    """Of one claim. `attempts` counts how often its batch was given to the sink, `deaths` how many of these attempts ended
    with the driver. `open`: the last attempt has no outcome yet. `flagged`: the messages are counted as delivered once.
    `finished`: the batch is acknowledged, and the messages of `tried` and `withheld` wait for the next claim."""

    claim: str
    tried: Messages
    withheld: Messages = field(default_factory=dict)
    suspects: int = 0
    failures: int = 0  # of `tried`
    attempts: int = 1
    deaths: int = 0
    open: bool = True
    flagged: bool = False
    finished: bool = False

    @property
    def phase(self) -> TrialPhase:
        tried = count(self.tried)
        if tried <= 1:
            return TrialPhase.ALONE if tried else TrialPhase.NONE
        return TrialPhase.PART if self.suspects else TrialPhase.WHOLE

    @property
    def messages(self) -> Messages:
        """All messages of the claim, tried or withheld."""
        return {
            member: ranges[0] | ranges[1]
            for member in sorted(self.tried.keys() | self.withheld.keys())
            if any(ranges := (self.tried.get(member, _NO), self.withheld.get(member, _NO)))
        }

    def within(self, present: Messages) -> Trial:
        """Without messages that the claim does not hold any more. What is still tried has not failed without them."""
        tried, withheld = common(self.tried, present), common(self.withheld, present)
        if (tried, withheld) == (self.tried, self.withheld):
            return self
        failures = self.failures if tried == self.tried else 0
        suspects = min(self.suspects, count(tried) + count(withheld))
        return replace(self, tried=tried, withheld=withheld, suspects=suspects, failures=failures)


class TrialReplay(NamedTuple):
    """`convicted` is the poison message, to be set aside before the replay."""

    trial: Trial
    convicted: Messages


def newest(copies: Iterable[Trial]) -> Trial | None:
    """Of the copies of one trial, which several servers keep, the one that was written last."""
    return max(copies, key=lambda trial: (trial.attempts, trial.failures, not trial.open), default=None)


def failed(trial: Trial) -> Trial:
    """The sink could not take what was tried."""
    return replace(trial, failures=trial.failures + 1, open=False) if trial.open else trial


def replayed(trial: Trial, *, narrows: bool) -> TrialReplay:
    """Spark gives the batch to the sink once more. An attempt without an outcome ended with the driver."""
    known = replace(trial, deaths=trial.deaths + trial.open, attempts=trial.attempts + 1, open=True)
    limit = LIMITS.get(trial.phase)
    step = limit.step if limit and narrows and trial.failures >= limit.failures else TrialStep.REPEAT
    if step is TrialStep.REPEAT:
        return TrialReplay(known, {})
    if step is TrialStep.CONVICT:
        return TrialReplay(replace(known, tried={}, suspects=0, failures=0), trial.tried)
    suspects = count(trial.tried)
    tried = first(trial.tried, -(-suspects // 2))
    withheld = joined(without(trial.tried, tried), trial.withheld)
    return TrialReplay(replace(known, tried=tried, withheld=withheld, suspects=suspects, failures=0), {})


def succeeded(trial: Trial) -> Trial | None:
    """The sink took what was tried: what the next batch tries. None: nothing is withheld, so the trial is over."""
    left = trial.withheld
    if not count(left):
        return None
    suspects = max(trial.suspects - count(trial.tried), 0)
    tried = first(left, -(-suspects // 2)) if suspects else left
    return replace(
        trial, tried=tried, withheld=without(left, tried), suspects=suspects, failures=0, open=False, finished=True
    )


def unlogged(trial: Trial) -> Trial | None:
    """The checkpoint does not know the batch of this trial: as `succeeded`, with nothing taken. None: the batch was not narrowed, and
    a checkpoint that was copied or damaged has lost it, so its messages are available again as those of any lost batch are."""
    return replace(trial, finished=True) if trial.flagged or count(trial.withheld) else None


def claimed_again(trial: Trial, claim: str) -> Trial:
    """The messages of a finished trial have a new claim, for the next batch."""
    return replace(trial, claim=claim, attempts=1, deaths=0, open=True, flagged=True, finished=False)


# -- sets of messages over members --------------------------------------------------------------------------------------
_NO = Ranges.of()


def count(messages: Messages) -> int:
    return sum(ranges.count for ranges in messages.values())


def first(messages: Messages, number: int) -> Messages:
    """The first `number` messages."""
    out = {}
    for member, ranges in sorted(messages.items()):
        if taken := ranges.take(number):
            out[member], number = taken, number - taken.count
    return out


def common(messages: Messages, others: Messages) -> Messages:
    return {m: both for m, ranges in messages.items() if (both := ranges & others.get(m, _NO))}


def without(messages: Messages, others: Messages) -> Messages:
    return {m: left for m, ranges in messages.items() if (left := ranges - others.get(m, _NO))}


def joined(messages: Messages, others: Messages) -> Messages:
    members = sorted(messages.keys() | others.keys())
    return {m: messages.get(m, _NO) | others.get(m, _NO) for m in members}


# -- stored form --------------------------------------------------------------------------------------------------------
def trial_to_json(trial: Trial) -> dict[str, Any]:
    return {
        "claim": trial.claim,
        "tried": {str(member): ranges.to_json() for member, ranges in sorted(trial.tried.items())},
        "withheld": {str(member): ranges.to_json() for member, ranges in sorted(trial.withheld.items())},
        "suspects": trial.suspects,
        "failures": trial.failures,
        "attempts": trial.attempts,
        "deaths": trial.deaths,
        "open": trial.open,
        "flagged": trial.flagged,
        "finished": trial.finished,
    }


def trial_from_json(value: Mapping[str, Any]) -> Trial:
    """Raises ValueError, KeyError or TypeError."""
    return Trial(
        str(value["claim"]),
        {int(member): Ranges.from_json(ranges) for member, ranges in value["tried"].items()},
        {int(member): Ranges.from_json(ranges) for member, ranges in value["withheld"].items()},
        int(value["suspects"]),
        int(value["failures"]),
        int(value["attempts"]),
        int(value["deaths"]),
        bool(value["open"]),
        bool(value["flagged"]),
        bool(value["finished"]),
    )
