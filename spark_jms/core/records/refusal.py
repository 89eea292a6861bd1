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

`ends` is this table, but for its first row, which another destination decides. `Sieve` finds what breaks a rule.

Features: C2, C8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import check_message_sizes, message_sizes
from spark_jms.core.messages.compression import saved_bytes
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.ordering.units_of_work import unit_names
from spark_jms.core.records.endings import EXPIRER, JUDGE, LIMITER
from spark_jms.core.records.redelivery import added_bytes
from spark_jms.settings.fields import REDIRECT

MESSAGE_SIZE, QUOTA = "maxMessageSize", "quota"  # the rules that a target can have
SEQUENCE = "sequence"


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


# -- what breaks a rule of its target ----------------------------------------------------------------------------------
@dataclass
class Sieve:
    """Finds the rows of one transfer that its target refuses for good. `whole_units`: units of work stay together.

    What was sent counts: not what spark-jms has added since, and what compression has saved does count. So a message that a
    destination has taken fits into every other one with the same limit.

    Of a unit of work all messages are refused with the one that breaks a rule: neither the part that moved nor the part that stayed
    would ever be complete.
    """

    whole_units: bool = False
    refused: dict[BrokenRule, Ranges] = field(default_factory=dict)
    _units: list[pa.Table] = field(default_factory=list)

    @property
    def messages(self) -> Ranges:
        return union(self.refused.values())

    def accepted(self, rows: pa.RecordBatch, declared: Destination) -> pa.RecordBatch:
        """The rows that the target takes, without the column `sequence`."""
        sequences = rows.column(SEQUENCE)
        if self.whole_units:
            self._units.append(pa.table({SEQUENCE: sequences, "unit": unit_names(rows.column("properties"))}))
        rows = rows.drop_columns([SEQUENCE])
        large = pc.greater(counted_sizes(rows), declared.max_message_bytes)
        if not pc.any(large, min_count=0).as_py():
            return rows
        most = declared.max_message_bytes
        rule = BrokenRule(MESSAGE_SIZE, f"larger than the maxMessageSize of {declared.name}, {most} bytes")
        self.refuse(rule, Ranges.from_numbers(sequences.filter(large)))
        return rows.filter(pc.invert(large))

    def refuse(self, rule: BrokenRule, messages: Ranges) -> None:
        self.refused[rule] = self.refused.get(rule, EMPTY) | messages

    def refuse_units(self) -> Ranges:
        """The accepted messages whose units of work have lost a part are refused too. Returns them."""
        if not (self._units and self.refused):
            return EMPTY
        units = pa.concat_tables(self._units)
        found = EMPTY
        for rule, messages in list(self.refused.items()):
            torn = pc.unique(units.filter(pc.is_in(units[SEQUENCE], messages.numbers()))["unit"]).drop_null()
            parts = units.filter(pc.is_in(units["unit"], torn, skip_nulls=True))[SEQUENCE].combine_chunks()
            if more := Ranges.from_numbers(parts) - self.messages:
                self.refuse(rule, more)
                found |= more
        return found


def counted_sizes(rows: pa.RecordBatch) -> pa.Int64Array:
    """What the maxMessageSize of a target counts of stored rows."""
    return reduce(pc.add, _beside(rows).values(), message_sizes(rows))


def check_counted_sizes(rows: pa.RecordBatch, max_message_bytes: int) -> None:
    """Raises MessageSizeError, which names the row."""
    check_message_sizes(rows, max_message_bytes, _beside(rows))


def _beside(rows: pa.RecordBatch) -> dict[str, pa.Int64Array]:
    """Bytes of each row that count beside the stored ones, or do not count (below 0)."""
    saved, added = saved_bytes(rows), added_bytes(rows)
    found = {"compression": saved, "added by spark-jms": None if added is None else pc.negate(added)}
    return {name: by_row for name, by_row in found.items() if by_row is not None}


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
