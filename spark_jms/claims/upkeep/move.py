"""Moves messages between destinations or members, exactly once: on request, and to members that have consumers.

Messages move in transfers of at most `BATCH` messages (claims/transactions/transfer.py), so each is in one member at any time,
whenever this process dies: the transfer that it leaves open is finished by the next process that opens the record. Between two
transfers the record is open to all, so consumers of the source continue. Claimed and moving messages stay where they are.

A `MemberForwarder` brings messages of members without consumers to members that have some, as a part of housekeeping, by the rules of
core/transactions/transfer.py. What its process forgets when it dies is how long members have been idle: their waits begin again.

Features: C14, C18, D5, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from spark_jms.claims.messages.fetch import fetch
from spark_jms.claims.messages.scan import Question, ScanBounds, scan
from spark_jms.claims.records.life_cycle import AcknowledgementTable, flush_opened
from spark_jms.claims.servers.stores import (
    AskedMember,
    OpenRecords,
    ask_members,
    label_of,
    opened_records,
    record_of,
    sessions_beside,
    started,
    state_of,
)
from spark_jms.claims.transactions.transfer import Movement, Transfers, TransfersEnded
from spark_jms.claims.upkeep import views
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import CONSUMPTION, INSERTION, PRODUCTION
from spark_jms.core.destinations.subscriptions import missed
from spark_jms.core.messages.carried import NOTHING_CARRIED
from spark_jms.core.messages.ranges import EMPTY, Ranges, union
from spark_jms.core.records.endings import FORWARDER, MOVER
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import Claim
from spark_jms.core.transactions.transfer import Forward, IdleMembers, LookedAt, forwards
from spark_jms.errors import DestinationReplacedError, InvalidDestinationError, JmsqError, TransferError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending.transfer import ROW_COLUMNS
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.tables.storage import now_ms
from spark_jms.store import Store, StoreError

if TYPE_CHECKING:  # a source, which keeps house too, must not load lark
    from spark_jms.core.selector import Selector

log = logging.getLogger("spark_jms")
BATCH = 10_000  # the most messages of a transfer
ROUND = 10_000  # the most messages of a member in one round
WAIT_S = 1.0  # for a record that a consumer holds
STORE_LIMIT_S = 15.0  # of one call of a store: one that hangs must not hold up the other destinations
_WITHOUT_UNIT = "JMSXGroupID IS NULL"  # those of before the declaration may have one, and stay


@dataclass(frozen=True)
class MoveOrder:
    """Which messages go where. `members` None: all of the source, but not the target's own. `limit` None: all. `table_id`: of the
    source, when the caller has looked at it (None: as it is now)."""

    source: str
    target: str
    subscription: str | None = None
    members: tuple[int, ...] | None = None
    target_member: int | None = None
    selector: Selector | None = None
    limit: int | None = None
    actor: str = MOVER  # the consumer in the acknowledgement table
    forwards: bool = False  # claims of dead consumers are revoked; what is delayed or was delivered too often stays
    convert: Callable[[pa.RecordBatch], pa.RecordBatch] = lambda rows: rows
    table_id: str | None = None


@dataclass(frozen=True)
class Moved:
    """The result of a move. `claimed` counts messages that were left to the consumers that have claimed them, selected or not."""

    moved: int
    claimed: int


class MovePace(Protocol):
    """Flow control of the target."""

    def share(self, messages: int) -> int:
        """How many of these may go together."""

    def wait(self, messages: int) -> None:
        """Until so many may go."""


@dataclass(frozen=True)
class Forwarded:
    """What one round has done to a destination. `problems`: why some messages were not forwarded; they are tried again."""

    destination: str
    moves: tuple[Forward, ...] = ()
    problems: tuple[str, ...] = ()


# -- move --------------------------------------------------------------------------------------------------------------


def plan_move(domain: Domain, store: Store, request: MoveOrder) -> Moved:
    """What a move would do now; changes nothing. Raises InvalidDestinationError."""
    subscription, members = _checked(domain, request)
    snapshot = domain.log(request.source).snapshot
    found = claimed = 0
    for member in members:
        state = state_of(store, snapshot, subscription, member)
        claimed += state.claimed.count
        left = None if request.limit is None else request.limit - found
        last = snapshot.last_sequence(member)
        question = Question(request.selector, missed=missed(snapshot.destination, subscription, member, last))
        found += selected(domain, request.source, question, state, member, last, left, table_id=snapshot.table_id).count
    return Moved(found, claimed)


def move(domain: Domain, store: Store, request: MoveOrder, wait_s: float, pace: MovePace | None = None) -> Moved:
    """Messages that are sent meanwhile are left. Raises InvalidDestinationError, InsertionPausedError before anything moves,
    MemberUnavailableError, MessageSizeError and TransferError, and DestinationReplacedError when the source or the target was dropped
    and created again meanwhile; what has moved by then stays moved, and no message is lost or doubled."""
    subscription, members = _checked(domain, request)
    snapshot, target_id = domain.log(request.source).snapshot, domain.log(request.target).snapshot.table_id
    batch = _batch(domain, request)
    transfers, moved, claimed = Transfers(domain, domain.log(request.source)), 0, 0
    logged = snapshot.destination.message_logging_enabled
    for member in members:
        record = record_of(snapshot, subscription, member)
        labels = {record: label_of(request.source, subscription, member)}
        last = snapshot.last_sequence(member)
        question = Question(request.selector, missed=missed(snapshot.destination, subscription, member, last))
        while request.limit is None or moved < request.limit:
            left = batch if request.limit is None else min(batch, request.limit - moved)
            if pace is not None:  # before the record is opened, which its consumers need
                left = pace.share(left)
                pace.wait(left)
            with opened_records(store, labels, wait_s, "move", logged=logged) as records:
                # While the record is open, a drop of the source waits for it. The target may be replaced until its commit.
                _check_same(domain, request.source, snapshot.table_id, moved)
                _check_same(domain, request.target, target_id, moved)
                _finish(transfers, records, record)
                floor = snapshot.destination.start_floor(subscription, member)
                state = started(records.states[record], snapshot, member, floor)
                if request.forwards:
                    state = _swept(store, snapshot.destination, records, record, state)
                limit = snapshot.destination.redelivery_limit
                stays = staying(state, limit, now_ms()) if request.forwards else EMPTY
                picks = selected(
                    domain, request.source, question, state, member, last, left, stays, table_id=snapshot.table_id
                )
                if picks:
                    order = replace(request, table_id=snapshot.table_id)
                    _transfer(domain, transfers, records, record, order, target_id, state, member, picks)
                    table = AcknowledgementTable(
                        domain.acknowledgements(request.source), snapshot.table_id, subscription
                    )
                    flush_opened(table, records, {record: member})  # there may be no consumer that does it
                claimed += 0 if picks else state.claimed.count
            if not picks:
                break
            moved += picks.count
    return Moved(moved, claimed)


def _check_same(domain: Domain, name: str, table_id: str, moved: int) -> None:
    """The numbers of a table's messages mean others in the next table of that name."""
    if domain.log(name).refresh().table_id != table_id:
        raise DestinationReplacedError(
            f"{name} was dropped and created again while messages moved: {moved:,} message(s) had moved before, and the new "
            f"{name} was left alone. Begin again, if its messages are meant"
        )


def _batch(domain: Domain, request: MoveOrder) -> int:
    """How many messages a transfer moves: the target's quota must have room for them at once."""
    quotas = domain.log(request.target).snapshot.destination.quotas if request.target != request.source else set()
    return min([BATCH, *(most for quota in quotas if (most := domain.quotas.limit(quota).messages) > 0)])


def _checked(domain: Domain, request: MoveOrder) -> tuple[str, list[int]]:
    """The subscription's name and the source's members."""
    source, target = domain.log(request.source).refresh().destination, domain.log(request.target).refresh().destination
    if request.table_id is not None:
        _check_same(domain, request.source, request.table_id, 0)
    if source.is_topic and request.subscription is None:
        raise InvalidDestinationError(
            f"{source.name} is a topic: name the subscription whose messages move (it has: "
            f"{', '.join(source.subscription_names()) or 'none'})"
        )
    subscription = views.subscriptions_of(domain, request.source, request.subscription)[0]
    if request.target_member is not None:
        target.check_member(request.target_member)
    closed = target.pauses.members(INSERTION, target.member_ids)
    if request.target_member in closed or len(closed) == target.members:
        target.check_insertion(closed if request.target_member is None else [request.target_member])
    for member in request.members or ():
        source.check_member(member)
    members = list(source.member_ids) if request.members is None else sorted(set(request.members))
    if source.name == target.name:
        if request.target_member is None:
            raise InvalidDestinationError(
                f"the messages of {source.name} are there already: name another destination, or the member they shall go to"
            )
        members = [m for m in members if m != request.target_member]
    return subscription, members


def selected(
    domain: Domain,
    source: str,
    question: Question,
    state: RecordSet,
    member: int,
    last: int,
    limit: int | None,
    stays: Ranges = EMPTY,
    *,
    table_id: str | None = None,
) -> Ranges:
    """The first available messages of a member that the question takes, without those that stay; delayed ones too."""
    found = EMPTY
    for window in filter(None, (window - stays for window in state.available_windows(1, last))):
        enough = None if limit is None else limit - found.count
        if enough is not None and enough <= 0:
            break
        found |= scan(domain.log(source), member, window, question, ScanBounds(enough), table_id=table_id).picks
    return found if limit is None else found.take(limit)


def _transfer(
    domain: Domain,
    transfers: Transfers,
    records: OpenRecords,
    record: str,
    request: MoveOrder,
    target_id: str,
    state: RecordSet,
    member: int,
    picks: Ranges,
) -> None:
    claim = f"move-{secrets.token_hex(8)}"
    counts_on = not domain.log(request.source).snapshot.destination.reset_delivery_count_on_forward
    claimed = state.claim(Claim(claim, request.actor, claim, picks, now_ms(), replayable=False))
    movement = Movement(
        claim,
        picks,
        map(request.convert, fetched(domain, request.source, member, picks, request.table_id)),
        request.target,
        request.target_member,
        request.actor,
        f"moved from {request.source}",
        target_id,
        carried=state.deliveries.carried(picks) if request.forwards and counts_on else NOTHING_CARRIED,
    )
    epoch = records.handles[record].epoch
    _check_ended(transfers.carry_out(claimed, movement, epoch, lambda after: records.change({record: after})))


def _swept(store: Store, declared: Destination, records: OpenRecords, record: str, state: RecordSet) -> RecordSet:
    """As a consumer would: claims of dead clients are revoked at once, those of queries after their in-doubt time."""
    live = set(sessions_beside(store, record))
    swept = state.sweep(live, now_ms(), declared.in_doubt_timeout_ms, declared.redelivery_delay_ms)
    records.change({record: swept})
    return swept


def fetched(
    domain: Domain, source: str, member: int, picks: Ranges, table_id: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages as a transfer takes them."""
    yield from fetch(domain.log(source), source, member, picks, {}, columns=ROW_COLUMNS, table_id=table_id)


def _finish(transfers: Transfers, records: OpenRecords, record: str) -> None:
    """Finish transfers that earlier moves have left open."""
    state = records.states[record]
    if not state.intents:
        return
    ended = transfers.finish(state, records.handles[record].epoch)
    records.change({record: ended.state})
    _check_ended(ended)


def _check_ended(ended: TransfersEnded) -> None:
    """Raises TransferError when a transfer does not end."""
    if ended.problems:
        raise TransferError(
            f"{len(ended.problems)} transfer(s) did not end; their messages are neither lost nor duplicated, and are tried "
            f"again: {ended.problems[0].text}"
        )


# -- forward -----------------------------------------------------------------------------------------------------------


class MemberForwarder:
    """Forwards the messages of one destination. Call `run` about once a second. Several processes may forward the same destination."""

    def __init__(
        self, domain: Domain, store: Store, destination: str, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._domain, self._store, self._destination = domain, store, destination
        self._monotonic_s = monotonic_s
        self._idle = IdleMembers({})
        self._turn = 0

    def run(self) -> Forwarded:
        """Does nothing for a destination without `forwardDelay`. Raises InvalidDestinationError when it was dropped."""
        snapshot = self._domain.log(self._destination).refresh()
        declared = snapshot.destination
        if declared.forward_delay_ms is None:
            self._idle = IdleMembers({})
            return Forwarded(self._destination)
        asked = ask_members(self._store, snapshot)
        looks = [LookedAt(one.member, _movable(one, snapshot).count, one.consumers) for one in asked.members]
        now_s = self._monotonic_s()
        self._idle = self._idle.after(looks, now_s)
        self._turn += 1
        plan = forwards(
            looks,
            self._idle.due(declared.forward_delay_ms / 1000, now_s),
            not_consuming=declared.pauses.members(CONSUMPTION, declared.member_ids),
            not_inserting=_not_inserting(declared),
            turn=self._turn,
        )
        done: list[Forward] = []
        problems = [f"server {server}: {why}" for server, why in asked.unreachable.items()]
        for step in plan:
            self._carry_out(step, snapshot.table_id, done, problems)
        return Forwarded(self._destination, tuple(done), tuple(problems))

    def _carry_out(self, step: Forward, table_id: str, done: list[Forward], problems: list[str]) -> None:
        from spark_jms.core.selector import Selector

        order = MoveOrder(
            self._destination,
            self._destination,
            members=(step.source,),
            target_member=step.target,
            selector=Selector.parse(_WITHOUT_UNIT),
            limit=min(step.messages, ROUND),
            actor=FORWARDER,
            forwards=True,
            table_id=table_id,
        )
        try:
            moved = move(self._domain, self._store, order, WAIT_S).moved
        except (JmsqError, StoreError, OSError) as error:
            problems.append(f"member {step.source} to {step.target}: {type(error).__name__}: {error}")
            return
        if moved:
            done.append(Forward(step.source, step.target, moved))
            log.info(
                "%s: forwarded %d message(s) of member %d to %d", self._destination, moved, step.source, step.target
            )


class Forwarders:
    """The forwarders of several destinations."""

    def __init__(self, domain: Domain, store: Store, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._domain, self._store, self._monotonic_s = domain, store, monotonic_s
        self._forwarders: dict[str, MemberForwarder] = {}

    def run(self, destinations: Sequence[str] = ()) -> list[Forwarded]:
        """One round of these destinations, or of all. What fails for one is in its `problems`, and the others continue."""
        try:
            names = list(dict.fromkeys(destinations)) or self._domain.destinations()
        except (JmsqError, OSError) as error:
            return [Forwarded("", problems=(f"{type(error).__name__}: {error}",))]
        return [self._run(name) for name in names]

    def _run(self, name: str) -> Forwarded:
        if name not in self._forwarders:
            self._forwarders[name] = MemberForwarder(self._domain, self._store, name, self._monotonic_s)
        try:
            return self._forwarders[name].run()
        except (JmsqError, StoreError, OSError) as error:
            return Forwarded(name, problems=(f"{type(error).__name__}: {error}",))


def _not_inserting(declared: Destination) -> frozenset[int]:
    """Members that get no messages: paused ones, and those that are leaving."""
    paused = (declared.pauses.members(operation, declared.member_ids) for operation in (INSERTION, PRODUCTION))
    return declared.leaving.union(*paused)


def staying(state: RecordSet, redelivery_limit: int, now_ms: int) -> Ranges:
    """Available messages that do not go to another member. Delays that are over count for nothing: without consumers, no
    process ends them."""
    delayed = union(ranges.all() for until_ms, ranges in state.delays.items() if until_ms > now_ms)
    return delayed | state.kept_back(redelivery_limit)


def _movable(one: AskedMember, snapshot: Snapshot) -> Ranges:
    """With claims of dead consumers: `move` revokes them, because no consumer comes that would."""
    available = one.state.available(1, snapshot.last_sequence(one.member))
    return (available | one.left_behind) - staying(one.state, snapshot.destination.redelivery_limit, now_ms())
