"""Move messages to another destination or member, exactly once.

Messages move in transfers of at most `BATCH` messages (claims/transfer.py). Between two of them the record is handed over,
so consumers of the source continue. Claimed and moving messages stay where they are.

Features: C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from spark_jms.claims import views
from spark_jms.claims.fetch import fetch
from spark_jms.claims.open_records import OpenRecords, opened_records
from spark_jms.claims.record_sets import label_of, state_of
from spark_jms.claims.scan import Question, ScanBounds, scan
from spark_jms.claims.stores import record_of, sessions_beside
from spark_jms.claims.transfer import Movement, Transfers, TransfersEnded
from spark_jms.core.claim import Claim
from spark_jms.core.destination import Destination
from spark_jms.core.forwarding import staying
from spark_jms.core.pause import INSERTION
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import missed
from spark_jms.errors import DestinationReplacedError, InvalidDestinationError, TransferError
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.log.transfer import ROW_COLUMNS
from spark_jms.store import Store

MOVER = "jmsq move"  # the consumer in the acknowledgement table
BATCH = 10_000


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
    """`claimed` counts messages that were left to the consumers that have claimed them, selected or not."""

    moved: int
    claimed: int


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


def move(domain: Domain, store: Store, request: MoveOrder, wait_s: float) -> Moved:
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
            with opened_records(store, labels, wait_s, "move", logged=logged) as records:
                # While the record is open, a drop of the source waits for it. The target may be replaced until its commit.
                _check_same(domain, request.source, snapshot.table_id, moved)
                _check_same(domain, request.target, target_id, moved)
                _finish(transfers, records, record)
                state = records.states[record].start_at(snapshot.destination.start_floor(subscription, member))
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
