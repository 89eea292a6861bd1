"""The journal of a record set: what was done to it, to do the same to another state of it. Pure.

Theory. A consumer plans on a state that others may have changed by the time of its write. So it does not write the state that it has
planned, but its journal: which methods of the record set led there, with their arguments. Inside the store's write, `replayed` calls
them on the newest state. Each method is one of these:

    what it asks for                                  on a newer state
    ----------------                                  ----------------
    a batch (`take`)                                  claims of what was offered what is still to be had
    an end that anyone may bring about: skip,         leaves out what is claimed or moving, and what has ended
    expire, limit, rows written to a table
    the end of a transfer or transaction              changes nothing when it has ended
    delivery counts that messages bring along         raises those that are lower
    an acknowledgement, a pledge                      ConsumerClosedException when the claim is not the consumer's any more
    a step of certain messages: claim, move,          StateChangedError when they are not as planned: the consumer plans again
    refuse, discard

A plan that was made before the record set was cleared is made again: its subscription was dropped.

Which sessions are dead is no part of a plan: a session that has connected since would be taken for dead. The plan says whom it has
found dead; all others that the store knows are alive.

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple

import pyarrow as pa

from spark_jms.core.messages.arrays import arrow_array
from spark_jms.core.messages.carried import CarriedCounts
from spark_jms.core.messages.ranges import EMPTY, Ranges, view
from spark_jms.core.ordering.units_of_order import NO_UNITS, UnitMessages
from spark_jms.core.records.endings import SkipReason, Stamp
from spark_jms.core.records.record_set import Noted, RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.records.refusal import MessageRefusal, refusals_from_json, refusals_to_json
from spark_jms.core.records.stored_form import claim_from_json, claim_to_json
from spark_jms.core.records.take import Offer, take
from spark_jms.core.transactions.transaction import Pledge, pledge_from_json, pledge_to_json
from spark_jms.core.transactions.transfer import Intent, Ticket, intent_from_json, intent_to_json
from spark_jms.settings.fields import LifeEvent

SWEEP, TAKE = "sweep", "take"
METHODS = frozenset(
    (
        *(
            "acknowledge",
            "attach",
            "carry",
            "claim",
            "delivered_to_table",
            "discard",
            "drop",
            "expire",
            "fulfilled",
            "limited",
        ),
        *("logged_to_table", "logging", "move", "moved", "pledge", "reconsider", "refuse", "release", "renewed"),
        *("returned", "revoke", "skip", "start_at", SWEEP, "withdrawn"),
    )
)


_OF_ANY_LIFE = frozenset(
    ("delivered_to_table", "fulfilled", "logged_to_table", "logging", "moved", "returned", "withdrawn")
)  # what a cleared record set has kept


class StateChangedError(Exception):
    """A record set is not as it was planned on: plan again."""


def replayed(
    state: RecordSet, changes: Sequence[Noted], sessions: Set[str], dead: Collection[str], clears: int | None = None
) -> RecordSet:
    """The state after the same changes. `sessions`: those that the store knows; `dead`: those that the plan has found dead; `clears`:
    how often the state of the plan had been cleared. Raises StateChangedError, and ConsumerClosedException when a claim is not its
    consumer's any more."""
    if clears not in (None, state.clears) and not {change.method for change in changes} <= _OF_ANY_LIFE:
        raise StateChangedError("it was cleared")
    try:
        for change in changes:
            if change.method == TAKE:
                state, _ = take(state, *change.arguments, **change.named)
                continue
            if change.method not in METHODS:
                raise ValueError(f"{change.method!r} is no change of a record set")
            arguments = change.arguments
            if change.method == SWEEP:
                arguments = (sessions - set(dead), *arguments[1:])
            state = getattr(state, change.method)(*arguments, **change.named)
    except (AssertionError, LookupError) as error:
        raise StateChangedError(str(error)) from error
    return state


def found_dead(state: RecordSet, changes: Sequence[Noted]) -> set[str]:
    """The sessions of this state that the plan's sweeps take for dead."""
    named = {*state.consumers.values(), *(claim.session for claim in state.claims.values())}
    sweeps = [change.arguments[0] for change in changes if change.method == SWEEP]
    return named.difference(*sweeps) if sweeps else set()


# -- as bytes ----------------------------------------------------------------------------------------------------------
class PlannedChange(NamedTuple):
    """What one consumer asks of record sets, by their names in the store: all of it is done, or nothing. `clears`: see `replayed`."""

    journals: Mapping[str, Sequence[Noted]]
    dead: Collection[str] = ()
    clears: Mapping[str, int] = MappingProxyType({})

    def without(self, name: str) -> PlannedChange:
        return self._replace(journals={other: journal for other, journal in self.journals.items() if other != name})

    def to_bytes(self) -> bytes:
        noted = {
            name: [
                [one.method, _written(_for_others(one)), {key: _to_json(value) for key, value in one.named.items()}]
                for one in changes
            ]
            for name, changes in self.journals.items()
        }
        return json.dumps([noted, sorted(self.dead), dict(self.clears)], separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes) -> PlannedChange:
        noted, dead, clears = json.loads(data)
        journals = {name: [_noted(*one) for one in changes] for name, changes in noted.items()}
        return PlannedChange(journals, dead, clears)


def _for_others(change: Noted) -> tuple[Any, ...]:
    """The arguments, without the list of the living, which `replayed` does not look at."""
    return ((), *change.arguments[1:]) if change.method == SWEEP else change.arguments


def _noted(method: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Noted:
    return Noted(method, tuple(map(_from_json, arguments)), {key: _from_json(value) for key, value in named.items()})


def _written(arguments: Sequence[Any]) -> list[Any]:
    return [_to_json(value) for value in arguments]


def _to_json(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    name, write, _ = _FORMS[type(value)]
    return {name: write(value)}


def _from_json(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((name, written),) = value.items()
    return _READERS[name](written)


def _claim_to_json(one: Claim) -> list[Any]:
    return [one.id, claim_to_json(one), None if one.order is None else [picks.to_json() for picks in one.order]]


def _claim_from_json(value: Sequence[Any]) -> Claim:
    key, claim, order = value
    return claim_from_json(key, claim, None if order is None else tuple(map(Ranges.from_json, order)))


def _offer_to_json(offer: Offer) -> list[Any]:
    """Without what is expired, which the holder of the plan expires by itself."""
    units = None
    if offer.units is not None:
        near = offer.units.rows.sort_by("sequence") if offer.units else None
        units = [[], []] if near is None else [near["sequence"].to_pylist(), near["unit"].to_pylist()]
    places = [None if array is None else list(view(array)) for array in (offer.order, offer.ends)]
    return [offer.picks.to_json(), *places, offer.alone.to_json(), units, offer.returns]


def _offer_from_json(value: Sequence[Any]) -> Offer:
    picks, order, ends, alone, units, returns = value
    by_order, behind = [None if numbers is None else arrow_array(numbers, pa.int64()) for numbers in (order, ends)]
    near = None if units is None else NO_UNITS
    if units is not None and units[0]:
        near = UnitMessages.of(arrow_array(units[0], pa.int64()), arrow_array(units[1], pa.string()))
    return Offer(Ranges.from_json(picks), by_order, behind, EMPTY, Ranges.from_json(alone), near, returns)


_FORMS: Mapping[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    Ranges: ("ranges", Ranges.to_json, Ranges.from_json),
    Claim: ("claim", _claim_to_json, _claim_from_json),
    CarriedCounts: ("carried", CarriedCounts.to_json, CarriedCounts.from_json),
    Offer: ("offer", _offer_to_json, _offer_from_json),
    Stamp: ("stamp", list, lambda value: Stamp(*value)),
    SkipReason: (
        "why",
        lambda one: [one.name, one.event.value, one.detail],
        lambda value: SkipReason(value[0], LifeEvent(value[1]), value[2]),
    ),
    Ticket: ("ticket", lambda one: [one.nonce, one.slot, one.number], lambda value: Ticket(*value)),
    Pledge: ("pledge", pledge_to_json, pledge_from_json),
    Intent: ("intent", intent_to_json, intent_from_json),
    MessageRefusal: ("refusal", lambda one: refusals_to_json((one,))[0], lambda value: refusals_from_json([value])[0]),
    tuple: ("tuple", _written, lambda values: tuple(map(_from_json, values))),
}
_READERS = {name: read for name, _, read in _FORMS.values()}
