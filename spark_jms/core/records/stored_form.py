"""The stored form of records: their names in the store, and the objects of a record set.

The names carry the id of the destination's table, not its name: a destination that is dropped and created again starts with
records of its own, and renaming one moves nothing.

A record set is several objects of one record, so that a change writes only what it changed:

    key                     value
    ---                     -----
    head                    JSON: version, floor, positions, consumers, nonce and slots of transfers, expired messages, returns, clears
    done/<chunk>            finished messages above the floor, in chunks (`ChunkedRanges`)
    deliveries/<n>/<chunk>  unfinished messages that were shown to an application n times
    perhaps/<n>/<chunk>     unfinished messages that were perhaps shown n more times (redelivery.py)
    alone/<chunk>           of both: those that are claimed alone
    delays/<until>/<chunk>  available messages that no consumer gets before this time
    claim/<id>              JSON: consumer, session, messages, times
    order/<id>              JSON: the order in which a claim's consumer shows them (`Claim`); earlier releases leave it behind
    outbox/<position>       JSON: an acknowledgement that waits for its table
    intent/<slot>           JSON: an open transfer (`Intent`)
    pledge/<ticket>/<claim> JSON: messages that wait for the decision of a transaction (`Pledge`)
    limit                   JSON: how far the subscription's limit was applied, and how many messages it has dropped
    event/<position>        JSON: an event that waits for the life-cycle table (life_cycle.py)
    refusals                JSON: messages that are refused for good, and why (refusal.py)

Earlier releases drop `returns` and `clears` when they write the head: a plan of a consumer that saw another number is made again.

Earlier releases read past `refusals` and leave it as it is: they try to move these messages as they always did. So it needs no
format version of its own, and what they have finished meanwhile is taken out when it is read.

A claim's object keeps messages of it that were acknowledged later: finished messages are taken out when it is read. So an
acknowledgement writes the head, one row of the outbox and the chunks it touches, however large the claim is.

Features: C5, C9, C16, C18, C19 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from spark_jms.core.destinations.subscriptions import NOTHING_DROPPED, LimitAccount
from spark_jms.core.messages.chunked_ranges import Chunk, ChunkedRanges
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.life_cycle import (
    Acknowledgement,
    LifeCycle,
    LoggedEvent,
    Outbox,
    WaitingEvents,
    outbox_change,
)
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim, DeliveryCounts
from spark_jms.core.records.refusal import refusals_from_json, refusals_to_json
from spark_jms.core.transactions.transaction import pledge_from_json, pledge_to_json
from spark_jms.core.transactions.transfer import Intent, intent_from_json, intent_to_json
from spark_jms.errors import FormatVersionError, RecordSetError
from spark_jms.settings.fields import LifeEvent

T = TypeVar("T")
MEMBERS_PREFIX = "members/"
DOMAIN_RECORD = "domain"  # of the domain's own store: which domain it serves
FORMAT_VERSION = 4
_WITHOUT_PERHAPS, _WITHOUT_PLEDGES = 3, 2  # earlier releases read a record set that has none of them
HEAD, LIMIT_ACCOUNT, REFUSALS = "head", "limit", "refusals"


# -- names -------------------------------------------------------------------------------------------------------------
def member_record(table_id: str, subscription: str, member: int) -> str:
    """The record set of a member."""
    return f"{members_prefix(table_id, subscription)}{member}"


def members_prefix(table_id: str, subscription: str) -> str:
    return f"{MEMBERS_PREFIX}{table_id}/{subscription}/"


def consumer_record(table_id: str, subscription: str, consumer: str) -> str:
    """The record that a running query holds for life."""
    return f"{consumers_prefix(table_id)}{subscription}/{consumer}"


def consumers_prefix(table_id: str) -> str:
    return f"consumers/{table_id}/"


def uses_record(table_id: str) -> str:
    """Which consumers use which subscriptions of a topic."""
    return f"subscribers/{table_id}"


def client_record(client_id: str) -> str:
    """Held by the one connection with a restricted client id."""
    return f"clients/{client_id}"


def lease_record(table_id: str) -> str:
    """The lease of the one process that does the destination's housekeeping."""
    return f"housekeeping/{table_id}"


def prefixes_of_table(table_id: str) -> list[str]:
    """Every record of a destination begins with one of these."""
    return [f"members/{table_id}/", consumers_prefix(table_id), lease_record(table_id), uses_record(table_id)]


# -- a record set as objects -------------------------------------------------------------------------------------------
def to_objects(state: RecordSet) -> dict[str, bytes]:
    """All objects of a record set. Keys and values as a store takes them."""
    return {key: value for key, value in changed_objects(None, state).items() if value is not None}


def changed_objects(before: RecordSet | None, after: RecordSet) -> dict[str, bytes | None]:
    """The objects to write when `before` becomes `after`; None deletes one. `before` None: everything is written."""
    old = before or RecordSet()
    out: dict[str, bytes | None] = {}
    if before is None or _in_head(before) != _in_head(after) or _version(before) != _version(after):
        out[HEAD] = _dump(_head(after))
    if (
        old.done.chunks is not after.done.chunks
        or old.deliveries is not after.deliveries
        or old.delays is not after.delays
    ):
        _compare(out, _chunks(old), _chunks(after), lambda chunk: chunk.data)
    for key, claim in after.claims.items():
        known = old.claims.get(key)
        if known is not claim and not _is_part(known, claim, after):
            out[f"claim/{key}"] = _dump(claim_to_json(claim))
    for key in old.claims.keys() - after.claims.keys():
        out[f"claim/{key}"] = None
    _compare_orders(out, old, after)
    outbox = outbox_change(old.outbox, after.outbox)
    for row in outbox.written:
        out[f"outbox/{row.position}"] = _dump(_row(row))
    for position in outbox.removed:
        out[f"outbox/{position}"] = None
    if old.limit != after.limit:
        kept = after.limit != NOTHING_DROPPED
        out[LIMIT_ACCOUNT] = _dump([after.limit.arrived, after.limit.dropped]) if kept else None
    if old.refusals is not after.refusals:
        out[REFUSALS] = _dump(refusals_to_json(after.refusals)) if after.refusals else None
    _compare_events(out, old.life, after.life)
    if old.intents is not after.intents:
        _compare(
            out,
            {f"intent/{slot}": intent for slot, intent in old.intents.items()},
            {f"intent/{slot}": intent for slot, intent in after.intents.items()},
            lambda intent: _dump(intent_to_json(intent)),
        )
    if old.pledges is not after.pledges:
        _compare(
            out,
            {f"pledge/{key}": pledge for key, pledge in old.pledges.items()},
            {f"pledge/{key}": pledge for key, pledge in after.pledges.items()},
            lambda pledge: _dump(pledge_to_json(pledge)),
        )
    return out


def from_objects(objects: Mapping[str, bytes], name: str) -> RecordSet:
    """The inverse of `to_objects`; no objects are a new record set. Raises RecordSetError or FormatVersionError with
    `name`, also for damaged chunks."""
    return followed(NEW_RECORD, objects, name).state


class Followed(NamedTuple):
    """A record set, and the objects that it was read from. `claims` are as they are stored, with what is finished of them: what is
    read next may be older, because a write has failed."""

    objects: Mapping[str, bytes]
    state: RecordSet
    claims: Mapping[str, Claim]


NEW_RECORD = Followed({}, RecordSet(), {})


def followed(known: Followed, objects: Mapping[str, bytes], name: str) -> Followed:
    """The record set with these objects, of which only those are read that `known` has not, or has with other bytes. Raises as
    `from_objects` does."""
    before = known.objects
    changed = [key for key, value in objects.items() if before.get(key) != value] + [*(before.keys() - objects.keys())]
    if not changed:
        return known
    if not objects:
        return NEW_RECORD
    try:
        return _read(known, objects, changed, name)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise RecordSetError(
            f"the state of {name} in the store cannot be read ({error!r}): restore the store from a copy, or drop the "
            "subscription with `jmsq subscriptions --drop`"
        ) from error


def followed_change(known: Followed, after: RecordSet, changes: Mapping[str, bytes | None]) -> Followed:
    """What is read once these changes of its objects are stored, which make `after` of it. Nothing has to be read for that."""
    objects, claims = dict(known.objects), dict(known.claims)
    for key, value in changes.items():
        objects.pop(key, None)
        if value is not None:
            objects[key] = value
        if key.startswith("claim/"):
            claims.pop(key[6:], None)
            if value is not None:
                claims[key[6:]] = after.claims[key[6:]]
        elif key.startswith("order/") and value is None and key[6:] in claims:  # of a stored claim that is finished
            claims[key[6:]] = replace(claims[key[6:]], order=None)
    state = after.logging(is_on=False, now_ms=0) if after.life.is_on else after
    return Followed(objects, state.with_journal(None), claims)


def _read(known: Followed, objects: Mapping[str, bytes], changed: Collection[str], name: str) -> Followed:
    before, fields = known.state, dict[str, Any]()
    places: dict[str, list[str]] = {}
    for key in changed:
        part, _, place = key.partition("/")
        places.setdefault(part, []).append(place)
    if HEAD not in objects:
        raise KeyError(HEAD)
    head = json.loads(objects[HEAD]) if places.keys() & {HEAD, "event"} else {}
    for part in places:
        match part:
            case "head":
                fields |= _read_head(head, name)
            case "done":
                fields[part] = ChunkedRanges(_newer(before.done.chunks, objects, part, places[part], _read_chunk))
            case "deliveries" | "perhaps" | "alone":
                shown, perhaps = _read_numbered(objects, "deliveries/"), _read_numbered(objects, "perhaps/")
                fields["deliveries"] = DeliveryCounts(shown, perhaps, _read_chunks(objects, "alone/"))
            case "delays":
                fields[part] = _read_numbered(objects, "delays/")
            case "outbox":
                known_rows = {row.position: row for row in before.outbox}
                rows = _newer(known_rows, objects, part, places[part], _read_row)
                fields[part] = Outbox([row for _, row in sorted(rows.items())])
            case "intent":
                fields["intents"] = {
                    int(slot): intent_from_json(json.loads(v)) for slot, v in _under(objects, "intent/")
                }
            case "pledge":
                fields["pledges"] = {key: pledge_from_json(json.loads(v)) for key, v in _under(objects, "pledge/")}
            case "limit":
                fields[part] = _read_limit(objects.get(LIMIT_ACCOUNT))
    if "head" in places or "event" in places:
        events = sorted((_read_event(v) for _, v in _under(objects, "event/")), key=lambda e: e.position)
        fields["life"] = LifeCycle(int(head.get("life", 0)), WaitingEvents(events))
    return _with_open(replace(before, **fields), known, objects, places)


def _newer(
    before: Mapping[int, T],
    objects: Mapping[str, bytes],
    part: str,
    places: Iterable[str],
    read: Callable[[str, bytes], T],
) -> dict[int, T]:
    """A part of the record set, of which the objects of these places have changed."""
    found = dict(before)
    for place in places:
        found.pop(int(place), None)
        value = objects.get(f"{part}/{place}")
        if value is not None:
            found[int(place)] = read(place, value)
    return found


def _with_open(
    state: RecordSet, known: Followed, objects: Mapping[str, bytes], places: Mapping[str, Sequence[str]]
) -> Followed:
    """With its claims and refusals, without what is finished of them."""
    stored = known.claims
    if places.keys() & {"claim", "order", HEAD, "done"}:
        changed = {*places.get("claim", ()), *places.get("order", ())}
        stored = {key: claim for key, claim in known.claims.items() if key not in changed}
        ordered = {key for key, claim in known.claims.items() if claim.order is not None} | known.state.left_orders
        for key in sorted(changed):
            value, order = objects.get(f"claim/{key}"), objects.get(f"order/{key}")
            shown = None if order is None else tuple(map(Ranges.from_json, json.loads(order)))
            ordered = ordered - {key} if shown is None else ordered | {key}
            if value is not None:
                stored[key] = claim_from_json(key, json.loads(value), shown)
        claims: dict[str, Claim] = {}
        for key, claim in stored.items():
            if picks := state.unfinished_of(claim.picks):
                claims[key] = claim if picks == claim.picks else replace(claim, picks=picks)
        state = replace(state, claims=claims, left_orders=frozenset(ordered - claims.keys()))
    if places.keys() & {"refusals", HEAD, "done"}:
        refusals = refusals_from_json(json.loads(objects.get(REFUSALS, b"[]")))
        left = [replace(one, picks=state.unfinished_of(one.picks)) for one in refusals]
        state = replace(state, refusals=tuple(one for one in left if one.picks))
    return Followed(objects, state, stored)


def _read_head(head: Mapping[str, Any], name: str) -> dict[str, Any]:
    if head["v"] > FORMAT_VERSION:
        raise FormatVersionError(
            f"the state of {name} has format version {head['v']}, this spark-jms reads up to {FORMAT_VERSION}: "
            "install a later spark-jms"
        )
    return {
        "floor": int(head["floor"]),
        "position": int(head["position"]),
        "consumers": dict(head["consumers"]),
        "nonce": str(head["nonce"]),
        "expired": int(head.get("expired", 0)),
        "returns": int(head.get("returns", 0)),
        "clears": int(head.get("clears", 0)),
        "slots": {int(slot): int(number) for slot, number in head["slots"].items()},
    }


_in_head = attrgetter(
    "floor", "position", "consumers", "nonce", "slots", "life.position", "expired", "returns", "clears"
)


def _version(state: RecordSet) -> int:
    if state.deliveries.perhaps or state.deliveries.alone:
        return FORMAT_VERSION
    return _WITHOUT_PERHAPS if state.pledges else _WITHOUT_PLEDGES


def _head(state: RecordSet) -> dict[str, Any]:
    return {
        "v": _version(state),
        "floor": state.floor,
        "position": state.position,
        "consumers": dict(state.consumers),
        "nonce": state.nonce,
        "slots": {str(slot): number for slot, number in state.slots.items()},
        **({"life": state.life.position} if state.life.position else {}),
        **({"expired": state.expired} if state.expired else {}),
        **({"returns": state.returns} if state.returns else {}),
        **({"clears": state.clears} if state.clears else {}),
    }


def _is_part(known: Claim | None, claim: Claim, after: RecordSet) -> bool:
    """The stored claim still serves: without the messages that are finished now, it is this one."""
    if known is None or known.in_doubt_since_ms != claim.in_doubt_since_ms or known.session != claim.session:
        return False
    return after.unfinished_of(known.picks) == claim.picks


def _chunks(state: RecordSet) -> dict[str, Chunk]:
    out = {f"done/{number}": chunk for number, chunk in state.done.chunks.items()}
    out |= {f"alone/{number}": chunk for number, chunk in state.deliveries.alone.chunks.items()}
    by_number = (
        ("deliveries", state.deliveries.shown),
        ("perhaps", state.deliveries.perhaps),
        ("delays", state.delays),
    )
    for prefix, numbered in by_number:
        for key, ranges in numbered.items():
            out |= {f"{prefix}/{key}/{number}": chunk for number, chunk in ranges.chunks.items()}
    return out


def _read_limit(value: bytes | None) -> LimitAccount:
    if value is None:
        return NOTHING_DROPPED
    arrived, dropped = json.loads(value)
    return LimitAccount(int(arrived), int(dropped))


def _compare(out: dict[str, bytes | None], old: Mapping[str, Any], new: Mapping[str, Any], encode: Any) -> None:
    for key, value in new.items():
        if old.get(key) is not value:
            out[key] = encode(value)
    out.update({key: None for key in old if key not in new})


def _compare_orders(out: dict[str, bytes | None], old: RecordSet, new: RecordSet) -> None:
    """A claim keeps its order. `left_orders`: of claims that an earlier release has ended."""
    known = {key for key, claim in old.claims.items() if claim.order is not None}
    needed = {key: claim.order for key, claim in new.claims.items() if claim.order is not None}
    out.update({f"order/{key}": None for key in (known - needed.keys()) | (old.left_orders - new.left_orders)})
    for key in needed.keys() - known:
        out[f"order/{key}"] = _dump([one.to_json() for one in needed[key]])


def _compare_events(out: dict[str, bytes | None], old: LifeCycle, new: LifeCycle) -> None:
    """Events are added at the end and removed at the front."""
    if old.waiting is new.waiting:
        return
    first = new.waiting[0].position if new.waiting else new.position + 1
    newest = old.waiting[-1].position if old.waiting else old.position
    out.update({f"event/{row.position}": None for row in old.waiting.up_to(first - 1)})
    out.update({f"event/{row.position}": _dump(_event(row)) for row in new.waiting.behind(newest)})


def _read_numbered(objects: Mapping[str, bytes], prefix: str) -> dict[int, ChunkedRanges]:
    """Chunks under a number each: of deliveries, or of a time."""
    found: dict[int, dict[int, Chunk]] = {}
    for place, data in _under(objects, prefix):
        key, number = place.split("/")
        found.setdefault(int(key), {})[int(number)] = _read_chunk(number, data)
    return {key: ChunkedRanges(chunks) for key, chunks in sorted(found.items())}


def _read_chunks(objects: Mapping[str, bytes], prefix: str) -> ChunkedRanges:
    return ChunkedRanges({int(number): _read_chunk(number, data) for number, data in _under(objects, prefix)})


def _read_chunk(number: str, data: bytes) -> Chunk:
    chunk = Chunk(int(number), data=data)
    if str(chunk.number) != number:
        raise ValueError(f"chunk {chunk.number} has the place {number!r}")
    chunk.check()
    return chunk


def intents_of(objects: Mapping[str, bytes], name: str) -> list[Intent]:
    """The open transfers alone, of a record set or of any other record. Raises RecordSetError with `name`."""
    try:
        return [intent_from_json(json.loads(value)) for _, value in _under(objects, "intent/")]
    except (ValueError, KeyError, TypeError) as error:
        raise RecordSetError(
            f"the transfers of {name} in the store cannot be read ({error!r}): restore the store from a copy"
        ) from error


def _under(objects: Mapping[str, bytes], prefix: str) -> Iterator[tuple[str, bytes]]:
    return ((key.removeprefix(prefix), value) for key, value in objects.items() if key.startswith(prefix))


_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each call


def _dump(value: object) -> bytes:
    return _encode(value).encode()


def claim_to_json(c: Claim) -> list[Any]:
    """Without its id and order."""
    return [
        c.consumer,
        c.session,
        c.picks.to_json(),
        c.made_ms,
        c.replayable,
        c.in_doubt_since_ms,
        c.in_doubt_timeout_ms,
    ]


def claim_from_json(key: str, value: Sequence[Any], order: tuple[Ranges, ...] | None) -> Claim:
    consumer, session, picks, *rest = value
    claim = Claim(key, consumer, session, Ranges.from_json(picks), *rest)
    return claim if order is None else replace(claim, order=order)


def _row(a: Acknowledgement) -> list[Any]:
    return [a.position, a.consumer, a.claim, a.picks.to_json(), a.epoch, a.acknowledged_ms, a.since]


def _read_row(place: str, value: bytes) -> Acknowledgement:
    position, consumer, claim, picks, *rest = json.loads(value)
    if str(position) != place:
        raise ValueError(f"acknowledgement {position!r} has the place {place!r}")
    return Acknowledgement(position, consumer, claim, Ranges.from_json(picks), *rest)


def _event(e: LoggedEvent) -> list[Any]:
    return [e.position, e.event.value, e.picks.to_json(), e.at_ms, e.consumer, e.claim, e.detail]


def _read_event(value: bytes) -> LoggedEvent:
    position, event, picks, at_ms, consumer, claim, detail = json.loads(value)
    return LoggedEvent(LifeEvent(event), Ranges.from_json(picks), at_ms, consumer, claim, detail, position)


# -- record sets of format version 1, one JSON value each, as `jmsq upgrade` reads them --------------------------------
STATE_KEY = "state"


def record_name_v1(destination: str, subscription: str, member: int) -> str:
    return f"{destination}/{subscription}/{member}"


@dataclass(frozen=True)
class RecordSetV1:
    """`acknowledged` maps each query to the newest claim that it acknowledged here."""

    state: RecordSet
    acknowledged: dict[str, str]


def from_v1(data: bytes, name: str) -> RecordSetV1:
    """Raises RecordSetError with `name`."""
    try:
        value = json.loads(data)
        if value["v"] != 1:
            raise ValueError(f"its version is {value['v']}")
        state = RecordSet(
            floor=value["floor"],
            done=ChunkedRanges.of(Ranges.from_json(value["done"])),
            position=value["position"],
            claims={
                key: Claim(key, consumer, session, Ranges.from_json(picks), *rest)
                for key, consumer, session, picks, *rest in value["claims"]
            },
            deliveries=DeliveryCounts(
                {times: ChunkedRanges.of(Ranges.from_json(r)) for times, r in value["deliveries"]}
            ),
            consumers=value["consumers"],
            outbox=Outbox(
                Acknowledgement(position, consumer, claim, Ranges.from_json(picks), *rest)
                for position, consumer, claim, picks, *rest in value["outbox"]
            ),
        )
        return RecordSetV1(state, dict(value.get("acknowledged", {})))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordSetError(
            f"the state of {name} in the store cannot be read ({error!r}): nothing of it was upgraded. Restore the store from "
            "a copy, then run `jmsq upgrade` again"
        ) from error


# -- the record set that a restored consumer finds ---------------------------------------------------------------------
def restored(state: RecordSet, last: int, present: Ranges, written: int, logged: int = 0) -> RecordSet:
    """`present`: the sequences of 1..`last` that the table still holds; `written`: the position up to which the
    acknowledgement table has this record set's rows; `logged`: the same of the life-cycle table. The next delivery of every
    unfinished message is flagged.

    A backup reads the store at one moment and each table later. Compared with the table, the record set is old in three ways, and
    each is mended:

        a message of the record set's backlog is missing from the table   it was finished and purged in between: DONE
        a message of the backlog is in the table                          it may have been delivered since: flagged
        a claim is open                                                   its consumer lives in another domain: released, flagged

    A message that an open transfer moves stays with its transfer. What was finished at the moment of the store stays finished.
    """
    after = state
    for claim_id in state.claims:
        after = after.release(claim_id, delivered=False)
    after = after.skip(Ranges.of((1, last)) - present - after.moving)
    seen = after.deliveries.perhaps_delivered(after.available(1, last), alone=False)
    after = replace(after, deliveries=seen)
    life = replace(after.life, position=max(state.life.position, logged))
    ahead = replace(after, consumers={}, position=max(state.position, written), life=life)
    return ahead.delivered_to_table(written).logged_to_table(logged)
