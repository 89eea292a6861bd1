"""Bugs to plant in core, log and claims, one at a time: each is a mistake that a change could make. The model of
tests/models/queue must notice it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attrs import evolve

from spark_jms.claims.batches import planner
from spark_jms.claims.batches.acknowledgement import PreviousBatch
from spark_jms.claims.batches.batch import BatchMaker
from spark_jms.claims.consumers.server_part import ServerPart
from spark_jms.claims.failures import expiration
from spark_jms.claims.failures.error_destination import ErrorDestination, Reconsideration
from spark_jms.claims.messages import scan, sort_order
from spark_jms.claims.records import members
from spark_jms.claims.records.members import Members, ProgressRecord
from spark_jms.claims.transactions.transfer import Transfers
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import CONSUMPTION, Pauses
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.ordering.blocked_units import BlockedUnits
from spark_jms.core.ordering.units_of_order import NO_UNITS
from spark_jms.core.records import record_set, redelivery
from spark_jms.core.records.batch import Batch, QueryProgress
from spark_jms.core.records.endings import FORWARDER, REDRIVER
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.redelivery import TRANSITIONS, Claim, MessageEvent, MessageState, MessageTransition
from spark_jms.core.records.refusal import MessageRefusal
from spark_jms.core.records.remembered import BlockedMessages, DelayedMessages, Looks
from spark_jms.core.records.take import Offer
from spark_jms.core.transactions.transfer import STEPS, NextStep, TargetOutcome, Ticket, TransferStep
from spark_jms.log.sending import send
from spark_jms.log.sending.send import TransactionId
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.log.upkeep import compaction, purge
from spark_jms.settings.fields import DISCARD
from tests.models.planted.patch import Patch, PlantedPatch


# -- core -----------------------------------------------------------------------------------------------------------------
def redelivery_is_not_flagged(patch: Patch) -> None:
    rows = dict(TRANSITIONS)
    rows[MessageState.CLAIMED, MessageEvent.REDELIVER] = MessageTransition(MessageState.AVAILABLE)
    rows[MessageState.IN_DOUBT, MessageEvent.REDELIVER] = MessageTransition(MessageState.AVAILABLE)
    patch.setattr(record_set, "TRANSITIONS", rows)


def second_redelivery_is_not_counted(patch: Patch) -> None:
    def counted(deliveries: Any, picks: Ranges) -> Any:
        known = deliveries.get(1)
        return original(deliveries, known.missing(picks) if known else picks)

    original = redelivery.counted
    patch.setattr(redelivery, "counted", counted)


def part_acknowledges_the_whole_claim(patch: Patch) -> None:
    def acknowledge(self: RecordSet, *args: Any) -> RecordSet:
        return original(self, *args[:5])

    original = RecordSet.acknowledge
    patch.setattr(RecordSet, "acknowledge", acknowledge)


def transfer_returns_what_has_arrived(patch: Patch) -> None:
    patch.setitem(STEPS, (True, TargetOutcome.APPENDED), TransferStep.RETURN)  # type: ignore[arg-type]


# -- log ------------------------------------------------------------------------------------------------------------------
def sequences_begin_behind_the_files(patch: Patch) -> None:
    """The transactions seq/<member> are not looked at: after a purge numbers are given again."""

    def last_sequence(self: Snapshot, member: int) -> int:
        newest = self.member_files(member).newest
        return newest.last if newest else 0

    patch.setattr(Snapshot, "last_sequence", last_sequence)


def transaction_is_not_looked_up(patch: Patch) -> None:
    patch.setattr(TransactionId, "is_in", lambda self, snapshot: False)


def purge_asks_for_no_subscription(patch: Patch) -> None:
    def finished(snapshot: Snapshot, is_done: Any, *args: Any, **others: Any) -> list[DataFile]:
        return original(snapshot, lambda name, member, sequences: True, *args, **others)

    original = purge.finished_files
    patch.setattr(purge, "finished_files", finished)


def compaction_changes_the_order(patch: Patch) -> None:
    def merge(log: DeltaLog, run: list[DataFile]) -> Any:
        return original(log, sorted(run, key=lambda file: file.rows))

    original = compaction.merged
    patch.setattr(compaction, "merged", merge)


def compaction_leaves_out_a_row(patch: Patch) -> None:
    """The file gets as many rows as before: the first one takes the place of the second."""

    def append(writer: Any, batches: list[Any], schema: Any) -> None:
        original(writer, [b.take([0, 0, *range(2, b.num_rows)]) if b.num_rows > 1 else b for b in batches], schema)

    original = compaction._append
    patch.setattr(compaction, "_append", append)


def old_staged_files_are_sent(patch: Patch) -> None:
    """A sender that slept commits files that clean-up has deleted."""
    patch.setattr(send, "too_old", lambda *args: [])


def staged_files_of_another_table_are_sent(patch: Patch) -> None:
    def prepare(self: Any, snapshot: Snapshot) -> Any:
        self._routed_by = replace(self._routed_by, table_id=snapshot.table_id)
        return original(self, snapshot)

    original = send._Send.prepare
    patch.setattr(send._Send, "prepare", prepare)


# -- claims ---------------------------------------------------------------------------------------------------------------
def claim_numbers_come_again(patch: Patch) -> None:
    """The query's record keeps the newest acknowledged number only."""

    def checked(self: PreviousBatch, start: Batch) -> QueryProgress:
        return replace(original(self, start), claimed=int(original(self, start).acknowledged.partition("-")[0] or 0))

    original = PreviousBatch.checked_progress
    patch.setattr(PreviousBatch, "checked_progress", checked)


def older_checkpoint_is_accepted(patch: Patch) -> None:
    patch.setattr(QueryProgress, "is_behind", lambda self, claim: False)


def copy_runs_beside_its_original(patch: Patch) -> None:
    """A query does not hold its record; its progress is read, and written by whichever instance comes last."""

    def open_record(self: ProgressRecord, timeout_s: float | None = None) -> None:
        self.handle = None
        self.value = QueryProgress.from_bytes(self._store.peek(self._record).get("progress"), "")

    def commit(
        self: Members, changed: Mapping[int, RecordSet], progress: QueryProgress | None = None, **named: Any
    ) -> None:
        own, self.progress = self.progress, None
        try:
            original(self, changed, **named)
        finally:
            self.progress = own

    original = Members.commit
    patch.setattr(ProgressRecord, "open", open_record)
    patch.setattr(Members, "commit", commit)


def checkpoint_of_another_table_is_accepted(patch: Patch) -> None:
    patch.setattr(ServerPart, "_check_bound", lambda self, batch: None)


def consumer_does_not_look_for_a_new_table(patch: Patch) -> None:
    patch.setattr(BatchMaker, "_check_new_records", lambda self: None)


def units_of_others_are_claimed(patch: Patch) -> None:
    patch.setattr(planner, "units_of", lambda *_, **__: NO_UNITS)
    patch.setattr(planner, "units_and_lost", lambda *_, **__: (NO_UNITS, EMPTY))


def freed_unit_stays_remembered(patch: Patch) -> None:
    """What waited behind a message stays left out when that one is finished."""

    def looks(self: BlockedMessages, blocked: Any, now_ms: int) -> Looks:
        return original(self, blocked, now_ms)._replace(again=EMPTY)

    original = BlockedMessages.looks
    patch.setattr(BlockedMessages, "looks", looks)


def messages_that_others_had_are_looked_at_no_more(patch: Patch) -> None:
    """A plan passes over what is claimed, and takes it for remembered."""

    def up_to(self: Any, last: int, new: Ranges, stored: RecordSet) -> Any:
        return original(self, last, EMPTY, stored)

    original = planner._Looked.up_to
    patch.setattr(planner._Looked, "up_to", up_to)


def remembered_messages_block_no_unit(patch: Patch) -> None:
    """A delayed message that is remembered blocks its unit no longer."""
    patch.setattr(DelayedMessages, "first_of_units", lambda self, state: {})


def undeliverable_messages_block_no_unit(patch: Patch) -> None:
    patch.setattr(BlockedUnits, "block_behind", lambda self, firsts: None)


def unlogged_claims_are_kept(patch: Patch) -> None:
    patch.setattr(RecordSet, "drop", lambda self, consumer, keep=None: self)


def moved_messages_are_acknowledged_first(patch: Patch) -> None:
    """Before the target has them; and then the mover forgets to append."""

    def run(self: Transfers, intent: Any) -> NextStep:
        return NextStep(TransferStep.ACKNOWLEDGE)

    patch.setattr(Transfers, "_run", run)


def intent_is_written_after_the_append(patch: Patch) -> None:
    """A mover that dies in between leaves the messages in both destinations."""

    def begin(self: Transfers, state: RecordSet, movement: Any) -> RecordSet:
        after = original(self, state, movement)
        for slot in after.intents.keys() - state.intents.keys():
            self._run(after.intents[slot])
        return after

    original = Transfers.begin
    patch.setattr(Transfers, "begin", begin)


def redelivered_messages_are_lost_on_the_way(patch: Patch) -> None:
    """An application may have had them in its sink, so in the end none is missing there."""

    def begin(self: Transfers, state: RecordSet, movement: Any) -> RecordSet:
        if not state.redelivered(movement.picks):
            return original(self, state, movement)
        return state.release(movement.claim, movement.picks, delivered=False).skip(movement.picks)

    original = Transfers.begin
    patch.setattr(Transfers, "begin", begin)


# -- shared record sets ---------------------------------------------------------------------------------------------------
def takes_look_at_no_units(patch: Patch) -> None:
    patch.setattr(Offer, "_behind", lambda self, blocking: EMPTY)


def takes_look_at_no_returns(patch: Patch) -> None:
    def within(self: Offer, state: RecordSet, redelivery_limit: int) -> Offer:
        return original(replace(self, returns=state.returns), state, redelivery_limit)

    original = Offer.within
    patch.setattr(Offer, "within", within)


def living_consumers_lose_their_claims(patch: Patch) -> None:
    """A sweep takes every consumer that has messages for dead."""

    def event_of_session(claim: Claim, live: Any, *times: int) -> MessageEvent | None:
        return original(claim, frozenset(), *times)

    original = redelivery.event_of_session
    patch.setattr(record_set, "event_of_session", event_of_session)


def living_consumers_lose_their_sessions(patch: Patch) -> None:
    """A plan takes every consumer that has no messages for dead."""

    def found_dead(state: RecordSet, changes: Any) -> set[str]:
        busy = {claim.consumer for claim in state.claims.values()}
        return {session for consumer, session in state.consumers.items() if consumer not in busy}

    patch.setattr(members, "found_dead", found_dead)


# -- the redelivery limit -------------------------------------------------------------------------------------------------
def messages_beyond_the_limit_are_delivered(patch: Patch) -> None:
    patch.setattr(RecordSet, "beyond_limit", lambda self, limit: EMPTY)


def limit_allows_one_delivery_less(patch: Patch) -> None:
    original = RecordSet.beyond_limit
    patch.setattr(RecordSet, "beyond_limit", lambda self, limit: original(self, limit - 1 if limit > 0 else limit))


def error_destination_gets_nothing(patch: Patch) -> None:
    def take(self: ErrorDestination, state: RecordSet, failed: Any, destination: Destination, epoch: int) -> RecordSet:
        without = evolve(destination, error_destination=None, expiration_policy=DISCARD)
        return original(self, state, failed, without, epoch)

    original = ErrorDestination.take
    patch.setattr(ErrorDestination, "take", take)


def refused_messages_are_delivered(patch: Patch) -> None:
    """Those that have expired, and those that a consumer would try again and again."""
    patch.setattr(RecordSet, "kept_back", lambda self, limit: EMPTY)


def refused_messages_block_no_unit(patch: Patch) -> None:
    patch.setattr(planner, "holding_back", lambda refusals: EMPTY)


def refused_messages_are_not_tried_again(patch: Patch) -> None:
    patch.setattr(Reconsideration, "_has_changed", lambda self, refusal, destination: False)


def refused_messages_are_lost(patch: Patch) -> None:
    """They are finished, as if they had moved."""

    def refuse(self: RecordSet, claim_id: str, refusal: MessageRefusal, *, delivered: bool) -> RecordSet:
        return self.release(claim_id, refusal.picks, delivered=delivered).skip(refusal.picks)

    patch.setattr(RecordSet, "refuse", refuse)


def redelivery_delay_is_not_waited_for(patch: Patch) -> None:
    patch.setattr(RecordSet, "waiting", EMPTY)


def redelivery_delay_is_forgotten(patch: Patch) -> None:
    patch.setattr(record_set, "delayed", lambda delays, picks, until_ms: delays)


# -- expiration -----------------------------------------------------------------------------------------------------------
def expired_messages_are_delivered(patch: Patch) -> None:
    original = scan.Question

    def question(selector: Any, blocked: Any, now_ms: int, due_ms: int, *others: Any) -> Any:
        return original(selector, blocked, None, due_ms, *others)

    patch.setattr(planner, "Question", question)


def redirected_messages_are_discarded(patch: Patch) -> None:
    patch.setattr(expiration, "REDIRECT", "another policy")
    claims = {**expiration.EXPIRED_CLAIMS, "Redirect": expiration.EXPIRED_CLAIMS["Discard"]}
    patch.setattr(expiration, "EXPIRED_CLAIMS", claims)


def neighbours_expire_too(patch: Patch) -> None:
    def expire(self: RecordSet, picks: Ranges, *how: Any) -> RecordSet:
        return original(self, Ranges.of((picks.first, picks.last + 1)), *how)

    original = RecordSet.expire
    patch.setattr(RecordSet, "expire", expire)


# -- pauses, priorities, forwarding ---------------------------------------------------------------------------------------
def paused_consumption_stops_no_plan(patch: Patch) -> None:
    def members(self: Pauses, operation: str, ids: Any) -> frozenset[int]:
        return frozenset() if operation == CONSUMPTION else original(self, operation, ids)

    original = Pauses.members
    patch.setattr(Pauses, "members", members)


def paused_destination_takes_messages(patch: Patch) -> None:
    patch.setattr(Destination, "check_production", lambda *_: None)


def new_messages_have_no_place_in_the_order(patch: Patch) -> None:
    def without_claimed(known: Offer, picks: Ranges) -> Offer | None:
        return original(known, known.picks & picks) if known.picks & picks else None

    original = sort_order._without_claimed
    patch.setattr(sort_order, "_without_claimed", without_claimed)


def forwarded_messages_stay_too(patch: Patch) -> None:
    def moved(self: RecordSet, ticket: Ticket, epoch: int, now_ms: int) -> RecordSet:
        forwarded = self.intents[ticket.slot].consumer == FORWARDER
        return self.returned(ticket) if forwarded else original(self, ticket, epoch, now_ms)

    original = RecordSet.moved
    patch.setattr(RecordSet, "moved", moved)


def redriven_messages_stay_too(patch: Patch) -> None:
    def moved(self: RecordSet, ticket: Ticket, epoch: int, now_ms: int) -> RecordSet:
        redriven = self.intents[ticket.slot].consumer == REDRIVER
        return self.returned(ticket) if redriven else original(self, ticket, epoch, now_ms)

    original = RecordSet.moved
    patch.setattr(RecordSet, "moved", moved)


LOST = r"lost: |for no reason|gone \(sequence|not drained"
DOUBLED = r"delivered twice|two places|received again|same sequence|two claims|two transfers|have gaps"

PLANTED_IN_QUEUES = (
    PlantedPatch("redelivery is not flagged", DOUBLED, redelivery_is_not_flagged, seed=7),
    PlantedPatch("second redelivery is not counted", DOUBLED, second_redelivery_is_not_counted, ("crash", "start")),
    PlantedPatch("part acknowledges the whole claim", LOST, part_acknowledges_the_whole_claim),
    PlantedPatch(
        "transfer returns what has arrived",
        r"received again|two places|is back at|not drained",
        transfer_returns_what_has_arrived,
        ("move", "move_back"),
    ),
    PlantedPatch(
        "sequences begin behind the files",
        DOUBLED + "|store knows message|accounted for",
        sequences_begin_behind_the_files,
        ("purge",),
    ),
    PlantedPatch("transaction is not looked up", r"AssertionError", transaction_is_not_looked_up),
    PlantedPatch("purge asks for no subscription", LOST, purge_asks_for_no_subscription, ("purge",)),
    PlantedPatch(
        "compaction changes the order",
        r"another message's content|out of order|got expired|before an earlier one|of priority",
        compaction_changes_the_order,
        ("compact",),
        seed=9,
    ),
    PlantedPatch(
        "compaction leaves out a row",
        r"another message's content|got expired|of priority|before an earlier",
        compaction_leaves_out_a_row,
        ("compact",),
        seed=9,
    ),
    PlantedPatch(
        "old staged files are sent",
        LOST + "|FileNotFoundError",
        old_staged_files_are_sent,
        ("stage", "wait_hours", "clean_up", "commit_staged"),
        seed=20,
    ),
    PlantedPatch(
        "staged files of another table are sent",
        r"routed for another table",
        staged_files_of_another_table_are_sent,
        ("stage", "drop", "apply", "commit_staged"),
    ),
    PlantedPatch(
        "claim numbers come again", r"gives claim number \d+ again", claim_numbers_come_again, ("crash", "start")
    ),
    PlantedPatch(
        "older checkpoint is accepted",
        r"was not refused",
        older_checkpoint_is_accepted,
        ("copy", "crash", "start"),
        seed=42,
    ),
    PlantedPatch(
        "copy runs beside its original",
        r"without a record of its own|beside another instance",
        copy_runs_beside_its_original,
        ("copy",),
    ),
    PlantedPatch(
        "checkpoint of another table is accepted",
        "a checkpoint of another table was not refused",
        checkpoint_of_another_table_is_accepted,
        ("drop", "apply", "start", "crash"),
    ),
    PlantedPatch(
        "consumer does not look for a new table",
        r"a destination that was dropped",
        consumer_does_not_look_for_a_new_table,
        ("drop", "apply"),
        seed=260,
    ),
    PlantedPatch("units of others are claimed", r"got units of order", units_of_others_are_claimed),
    PlantedPatch("a freed unit stays remembered", "before an earlier one", freed_unit_stays_remembered),
    PlantedPatch(
        "messages that others had are looked at no more",
        r"of priority \d+ before",
        messages_that_others_had_are_looked_at_no_more,
    ),
    PlantedPatch("remembered messages block no unit", "before an earlier one", remembered_messages_block_no_unit),
    PlantedPatch(
        "undeliverable messages block no unit", r"before an earlier one", undeliverable_messages_block_no_unit
    ),
    PlantedPatch("unlogged claims are kept", r"not drained|two claims", unlogged_claims_are_kept, ("crash", "start")),
    PlantedPatch("moved messages are acknowledged first", LOST, moved_messages_are_acknowledged_first),
    PlantedPatch(
        "intent is written after the append", DOUBLED, intent_is_written_after_the_append, ("move", "move_back")
    ),
    PlantedPatch("takes look at no units", "before an earlier one|got units of order", takes_look_at_no_units),
    PlantedPatch(
        "takes look at no returns",
        "before an earlier one|of priority",
        takes_look_at_no_returns,
        ("crash", "start"),
        seed=148,
    ),
    PlantedPatch("living consumers lose their claims", "which lives, was revoked", living_consumers_lose_their_claims),
    PlantedPatch(
        "living consumers lose their sessions", "which lives, has ended", living_consumers_lose_their_sessions
    ),
    PlantedPatch(
        "redelivered messages are lost on the way",
        "for no reason",
        redelivered_messages_are_lost_on_the_way,
        ("move", "crash", "start", "wait_long"),
    ),
    PlantedPatch(
        "messages beyond the limit are delivered",
        r"got a message for the \w+ time",
        messages_beyond_the_limit_are_delivered,
        ("crash", "start", "wait"),
    ),
    PlantedPatch(
        "limit allows one delivery less", "for no reason", limit_allows_one_delivery_less, ("crash", "start"), seed=87
    ),
    PlantedPatch(
        "error destination gets nothing", "for no reason", error_destination_gets_nothing, ("crash", "start", "wait")
    ),
    PlantedPatch(
        "refused messages are delivered",
        r"got a message for the \w+ time|refused for good",
        refused_messages_are_delivered,
        ("crash", "start", "wait"),
        seed=530,
    ),
    PlantedPatch(
        "refused messages block no unit",
        "before an earlier one",
        refused_messages_block_no_unit,
        ("crash", "start", "wait"),
        seed=582,
    ),
    PlantedPatch(
        "refused messages are not tried again", "not drained", refused_messages_are_not_tried_again, ("wait",), seed=53
    ),
    PlantedPatch("refused messages are lost", LOST, refused_messages_are_lost, ("crash", "start", "wait"), seed=62),
    PlantedPatch(
        "redelivery delay is not waited for",
        "before its redelivery delay was over",
        redelivery_delay_is_not_waited_for,
        seed=33,
    ),
    PlantedPatch(
        "redelivery delay is forgotten",
        "before its redelivery delay was over",
        redelivery_delay_is_forgotten,
        ("crash", "start", "wait"),
        seed=36,
    ),
    PlantedPatch("expired messages are delivered", "got expired messages", expired_messages_are_delivered, ("wait",)),
    PlantedPatch("redirected messages are discarded", "for no reason", redirected_messages_are_discarded, ("wait",)),
    PlantedPatch(
        "paused consumption stops no plan", "whose consumption is paused", paused_consumption_stops_no_plan, ("pause",)
    ),
    PlantedPatch(
        "paused destination takes messages", "messages were sent to", paused_destination_takes_messages, ("pause",)
    ),
    PlantedPatch(
        "new messages have no place in the order", "of priority", new_messages_have_no_place_in_the_order, seed=79
    ),
    PlantedPatch(
        "forwarded messages stay too", DOUBLED + "|back at", forwarded_messages_stay_too, ("forward", "crash"), seed=56
    ),
    PlantedPatch("redriven messages stay too", DOUBLED + "|back at", redriven_messages_stay_too, ("redrive", "wait")),
    PlantedPatch(
        "neighbours expire too", "for no reason|that are (not available|done)", neighbours_expire_too, ("wait",)
    ),
)
