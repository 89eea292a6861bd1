"""Messages that cannot leave their member, because the destination that shall take them refuses them for good. Pure.

A failed message moves to an error destination, and one that cannot be decoded to `jmsq-set-aside`. What prevents that

    is of the moment: the target cannot be reached, is paused, is full     nothing is stored, and it is tried again within seconds
    is a rule of the target that this message breaks                       the message is *refused for good*

One that is refused for good stays where it is, available to administrators (`jmsq move`, `redrive`, `purge`) and to no consumer. It
holds back its unit of order, unless it has expired, and nothing else: the other messages of its transfer move without it. The record
set keeps a `MessageRefusal` of it until it is finished, or

    its part of spark-jms     does not want it to move any more           then
    any                       the target, or what it declares, changed    it is tried again
    redelivery limit          it is within a new redelivery limit         consumers get it again
    message expiration        the policy is another one                   it expires by that policy
    unit of work              the destination delivers no units of work   consumers get it, as a single message

`ends` is this table, but for its first row, which another destination decides. target_rules.py finds what breaks a rule.

Features: C8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_jms.core.acknowledgement import LIMITER
from spark_jms.core.destination import Destination
from spark_jms.core.expiration import EXPIRER
from spark_jms.core.ranges import EMPTY, Ranges, union
from spark_jms.settings.expiration import REDIRECT

JUDGE = "unit of work"  # the consumer of faulty parts, in the acknowledgement table
ISOLATION = "poison isolation"  # that of poison messages
ASIDE = "set aside"  # what cannot be decoded; in the acknowledgement table it is the consumer that found it
MESSAGE_SIZE, QUOTA = "maxMessageSize", "quota"  # the rules that a target can have


@dataclass(frozen=True)
class BrokenRule:
    """`rule`: MESSAGE_SIZE or QUOTA; `text` is for people."""

    rule: str
    text: str


NO_RULE = BrokenRule("", "")


@dataclass(frozen=True)
class MessageRefusal:
    """`consumer`: the part of spark-jms that wants to move these messages, as in the acknowledgement table, because of their
    `failure`. `declared`: what the target declared when it refused them."""

    picks: Ranges
    consumer: str
    failure: str
    target: str
    declared: str
    broken: BrokenRule
    since_ms: int

    def is_like(self, other: MessageRefusal) -> bool:
        return replace(self, picks=other.picks, since_ms=other.since_ms) == other


Refusals = tuple[MessageRefusal, ...]


def added(known: Refusals, new: MessageRefusal) -> Refusals:
    """A message is in one of them: the newest."""
    for at, one in enumerate(kept := left(known, new.picks)):
        if one.is_like(new):
            return (*kept[:at], replace(one, picks=one.picks | new.picks), *kept[at + 1 :])
    return (*kept, new)


def left(known: Refusals, gone: Ranges) -> Refusals:
    """Without these messages, which are finished or tried again."""
    if not known or not any(one.picks & gone for one in known):
        return known
    return tuple(replace(one, picks=rest) for one in known if (rest := one.picks - gone))


def messages_of(refusals: Iterable[MessageRefusal]) -> Ranges:
    return union(one.picks for one in refusals)


def holding_back(refusals: Refusals) -> Ranges:
    """Those that block what comes behind them in their units of order. What has expired blocks nothing."""
    return messages_of(one for one in refusals if one.consumer != EXPIRER)


def ends(refusal: MessageRefusal, destination: Destination, beyond_limit: Ranges) -> Ranges:
    """What is refused no longer, by what the origin declares alone. `beyond_limit`: what its redelivery limit concerns now."""
    if refusal.consumer == LIMITER:
        return refusal.picks - beyond_limit
    if refusal.consumer == EXPIRER and destination.expiration_policy != REDIRECT:
        return refusal.picks
    if refusal.consumer == JUDGE and not destination.handles_units_of_work:
        return refusal.picks
    return EMPTY


# -- stored form -------------------------------------------------------------------------------------------------------
def refusals_to_json(refusals: Refusals) -> list[dict[str, Any]]:
    return [
        {
            "picks": one.picks.to_json(),
            "consumer": one.consumer,
            "failure": one.failure,
            "target": one.target,
            "declared": one.declared,
            "rule": one.broken.rule,
            "reason": one.broken.text,
            "sinceMs": one.since_ms,
        }
        for one in refusals
    ]


def refusals_from_json(values: Iterable[Mapping[str, Any]]) -> Refusals:
    """Raises ValueError, KeyError or TypeError."""
    return tuple(
        MessageRefusal(
            Ranges.from_json(value["picks"]),
            str(value["consumer"]),
            str(value["failure"]),
            str(value["target"]),
            str(value["declared"]),
            BrokenRule(str(value["rule"]), str(value["reason"])),
            int(value["sinceMs"]),
        )
        for value in values
    )
