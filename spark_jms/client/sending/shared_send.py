"""Concurrent sends of one process share files and one commit.

1. A sender queues its messages. `GroupCommit` makes one sender the leader, and the leader takes all that is queued.
2. The leader converts the messages of all senders at once. When one of them is refused, it converts each sender's alone.
3. It stages one file for each member that gets messages, and commits all files together.
4. Each sender reads the positions of its own messages from the shipment.
5. A shipment that is refused because a member is paused, down or removed, or because the destination's quota has no room, is
   repeated for each sender alone, so that only senders with messages for that member, or more than there is room for, get the
   error. While insertion is paused, each waits by its own time-out, and queues again; for room it waits in the quota's own
   queue, and then commits alone. What one call of `send_all` has for that member of the same producer stays behind it.

    an error                                 reaches                       its messages are
    --------                                 -------                       ----------------
    of a message: format, size, its member   its own sender                not sent; the others' are
    is paused, down or removed, no room
    of staging, or before the log has it     each sender, as a copy        not sent
    while the log is written                 each sender, as a copy        unknown (CommitOutcomeUnknownError)
    of a producer's numbers: sent already,   its own sender                not sent; the others' are
    a gap, fenced
    an interrupt (Ctrl-C) of the leader      the leader                    unknown to it; the other senders look into the
                                                                           log, and send again what is certainly not there

Messages stay in the order in which they were queued, so each thread's own sends keep theirs. One thread may also queue the
sends of many callers at once: `send_all`, for asynchronous sends.

Features: C5, C11, T11, M1 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple, TypeGuard, TypeVar

import pyarrow as pa

from spark_jms.client.messages.columns import Item, to_columns
from spark_jms.client.sending.producers import SendNumbers
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing, route
from spark_jms.core.messages.columns import normalise
from spark_jms.core.messages.compression import compressed
from spark_jms.core.ordering.units_of_order import refuse_units, with_default_unit
from spark_jms.core.ordering.units_of_work import check_parts, routing_groups
from spark_jms.core.transactions.producers import AlreadySentError, PartlySentError, new_versions
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import (
    DestinationPausedError,
    InsertionPausedError,
    InvalidDestinationError,
    JmsqError,
    LargerThanQuotaError,
    MessageFormatError,
    MessageSizeError,
    ProducerFencedError,
    QuotaExceededError,
    SequenceGapError,
    ServerDownError,
    own_copy,
)
from spark_jms.log.messages.data_files import discard
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import (
    Sent,
    explained,
    find,
    send,
    wait_for_change,
)
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot
from spark_jms.store import OutcomeUnknownError
from spark_jms.store.ledger.group_commit import Drain, GroupCommit, GroupRequest, PlanCall, finish

GATHER_S = 0.0005
_REFUSALS = (MessageFormatError, MessageSizeError)
# Perhaps not of each sender's.
_OF_A_MEMBER = (DestinationPausedError, ServerDownError, InvalidDestinationError, QuotaExceededError)
_OF_A_PRODUCER = (AlreadySentError, PartlySentError, SequenceGapError, ProducerFencedError)
_EVERY_MEMBER = -1

_Decided = TypeVar("_Decided")
Sender = tuple[object, str]  # a call of send_all, and one producer's messages in it
# And a member -> why one of the sender's messages for that member waits.
WaitingFor = dict[tuple[Sender, int], InsertionPausedError | QuotaExceededError]


class SentPosition(NamedTuple):
    """Where a sent message is."""

    member: int
    sequence: int
    message_id: str


@dataclass(frozen=True)
class OutgoingMessages:
    """Messages of one producer. `turn` is the round-robin turn of the first; `wait_s` how long to wait while insertion is
    paused."""

    messages: Sequence[Item]
    turn: int
    now_ms: int
    wait_s: float = 0
    balancing: Balancing = ANY_MEMBER
    producer: str = ""
    threshold: int | None = None  # from so many bytes on a body is compressed; None: never
    numbering: SendNumbers | None = None  # of a producer with an id
    unit: str | None = None  # the default unit of order of its connection factory


class Part:
    """One sender's messages, on their way. They are neighbours in the shipment, from row `first` on."""

    def __init__(self, outgoing: OutgoingMessages, call: object = None) -> None:
        self.messages, self.turn, self.now_ms = outgoing.messages, outgoing.turn, outgoing.now_ms
        self.balancing, self.producer, self.threshold = outgoing.balancing, outgoing.producer, outgoing.threshold
        self.unit = outgoing.unit
        self.numbering, self.duplicate = outgoing.numbering, False  # duplicate: in the table already, by its numbers
        self.sender = call, outgoing.producer  # in one call, the messages of one producer have an order
        self.shipment: Shipment | None = None
        self.first = 0

    def join(self, shipment: Shipment) -> None:
        self.shipment = shipment
        shipment.parts.append(self)

    def failed(self, error: Exception) -> None:
        if self.numbering is not None:
            self.numbering.failed(error)

    @property
    def version(self) -> int:
        """The version of the log with the messages, once they are sent."""
        return self._sent.version

    @property
    def _sent(self) -> Sent:
        assert self.shipment is not None
        assert self.shipment.sent is not None
        return self.shipment.sent

    def positions(self) -> list[SentPosition]:
        """Where the messages are, in their order, once they are sent."""
        sent = self._sent
        assert self.shipment is not None
        rows = slice(self.first, self.first + len(self.messages))
        tokens = self.shipment.tokens
        return [
            SentPosition(member, sent.sequences[member].first + ordinal, f"ID:{tokens[member]}-{ordinal}")
            for member, ordinal in zip(self.shipment.members[rows], self.shipment.ordinals[rows], strict=True)
        ]


class SharedSender:
    """Sends for all producers of one destination in this process. Thread-safe."""

    def __init__(self, log: DeltaLog) -> None:
        self._log = log
        self._group = GroupCommit(self._lead, gather_s=GATHER_S)

    def send(self, outgoing: OutgoingMessages) -> Part:
        """Returns when the messages are in the table."""
        (outcome,) = self.send_all([outgoing])
        try:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome
        finally:
            del outcome  # else the error and this call would keep each other in memory

    def send_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception]:
        """As `send` of each, in this order, in one shipment with what other threads send. Returns the part or the error of
        each."""
        started, call = time.monotonic(), object()
        outcomes: dict[int, Part | Exception] = {}
        left = list(range(len(outgoing)))
        while left:
            epoch = self._log.snapshot.destination.epoch
            outcomes.update(self._round(outgoing, left, call))
            self._wait_for_room(outgoing, left, started, outcomes)
            paused = [number for number in left if isinstance(outcomes[number], InsertionPausedError)]
            left = [number for number in left if isinstance(outcomes[number], OutcomeUnknownError)]
            left += self._resumed(paused, [started + outgoing[number].wait_s for number in paused], epoch)
            left.sort()
        _note_failures(outgoing, outcomes)
        return [outcomes[number] for number in range(len(outgoing))]

    def try_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception | None]:
        """The same without a wait. None: nothing of this one was sent, and `send_all` would wait with it, or send it again."""
        outcomes = self._round(outgoing, range(len(outgoing)), object())
        decided = {
            number: outcome
            for number, outcome in outcomes.items()
            if not (isinstance(outcome, OutcomeUnknownError) or (_waits(outcome) and outgoing[number].wait_s > 0))
        }
        _note_failures(outgoing, decided)
        return [decided.get(number) for number in range(len(outgoing))]

    def _round(
        self, outgoing: Sequence[OutgoingMessages], numbers: Sequence[int], call: object
    ) -> dict[int, Part | Exception]:
        """One attempt with each of these."""
        parts = [Part(outgoing[number], call) for number in numbers]
        calls = self._group.write_all([part.join for part in parts])
        found = zip(numbers, parts, calls, strict=True)
        return {number: self._outcome(part, made) for number, part, made in found}

    def _outcome(self, part: Part, call: PlanCall) -> Part | Exception:
        """OutcomeUnknownError: it is certainly not sent, and the caller sends it again."""
        error, call.error = call.error, None
        if isinstance(error, OutcomeUnknownError):  # another thread led, and was interrupted
            try:
                return part if part.shipment is not None and part.shipment.is_sent() else error
            except JmsqError as unknown:
                return unknown
        assert error is None or isinstance(error, Exception)
        return error or part

    def _resumed(self, paused: Sequence[int], deadlines: Sequence[float], epoch: int) -> Sequence[int]:
        """Those of the paused sends that may try again, once insertion may have been resumed or one of them has to give up."""
        if not paused or wait_for_change(self._log, epoch, min(deadlines)):
            return paused
        now = time.monotonic()
        return [number for number, deadline in zip(paused, deadlines, strict=True) if deadline > now]

    def _wait_for_room(
        self,
        outgoing: Sequence[OutgoingMessages],
        numbers: Sequence[int],
        started: float,
        outcomes: dict[int, Part | Exception],
    ) -> None:
        """Each that the quota refused waits alone, one after the other. One behind another that has waited tries at least once."""
        waiting: WaitingFor = {}
        waited = False
        for number in numbers:
            left_s = started + outgoing[number].wait_s - time.monotonic()
            if _waits_for_room(outcomes[number]) and (left_s > 0 or waited):
                outcomes[number] = self._ship_alone(Part(outgoing[number]), max(0.0, left_s), waiting)
                waited = True

    def _ship_alone(self, part: Part, wait_s: float, waiting: WaitingFor) -> Part | Exception:
        shipment = Shipment(self._log, waiting)
        try:
            part.join(shipment)
            shipment.encode_alone()
            shipment.commit(wait_s)
        except InsertionPausedError as error:
            waiting.update(dict.fromkeys(shipment.senders(), error))
            return error
        except InvalidDestinationError as error:
            return explained(self._log, error)
        except AlreadySentError:
            part.duplicate = True
        except Exception as error:  # noqa: BLE001 - the sender gets it
            part.failed(error)
            return error
        finally:
            shipment.let_go()
        return part

    def _lead(self, drain: Drain) -> None:
        requests = drain()
        self._ship(requests)
        finish(requests, None)

    def _ship(self, requests: Sequence[GroupRequest], waiting: WaitingFor | None = None) -> None:
        """A request that fails gets its error. `waiting`, and what is added to it: behind whom messages of this round wait."""
        shipment = Shipment(self._log, waiting)
        try:
            for request in requests:
                request.run(shipment)
            shipment.encode([request for request in requests if request.error is None])
            shipment.commit()
        except Exception as error:  # noqa: BLE001 - it is raised in each sender
            failed = [request for request in requests if request.error is None]
            if isinstance(error, InvalidDestinationError):
                error = explained(self._log, error)
            if isinstance(error, _OF_A_MEMBER + _OF_A_PRODUCER) and len(failed) > 1:
                alone: WaitingFor = {}
                for request in failed:
                    self._ship([request], alone)
                return
            if waiting is not None and _waits(error):
                waiting.update(dict.fromkeys(shipment.senders(), error))
            shipment.note_failure(error)
            for request in failed:
                if not isinstance(error, AlreadySentError):
                    request.error = error if len(requests) == 1 else own_copy(error)
        finally:
            shipment.let_go()


class Shipment:
    """The messages of several senders, in one commit. Used by the leader, then read by each sender."""

    def __init__(self, log: DeltaLog, waiting: WaitingFor | None = None) -> None:
        self._log, self._waiting = log, waiting or {}
        self.parts: list[Part] = []
        self.sent: Sent | None = None
        self._files: list[StagedFile] = []
        self._committing = False
        self.members: list[int] = []  # of each row
        self._rows: pa.RecordBatch | None = None
        self._stored: dict[str, pa.RecordBatch] = {}  # path -> rows as stored

    def encode(self, requests: Sequence[GroupRequest]) -> None:
        """Convert all messages to rows. A request whose messages are refused gets the error, and its part leaves."""
        try:
            self.encode_alone()
        except _REFUSALS as refusal:
            if len(requests) == 1:
                raise
            destination = self._log.snapshot.destination
            stopped: dict[Sender, Exception] = {}  # what those behind a message of a producer with an id get
            for request, part in zip(requests, tuple(self.parts), strict=True):
                try:
                    if part.sender in stopped:
                        raise own_copy(stopped[part.sender])
                    rows_of([part], destination)
                except (*_REFUSALS, SequenceGapError) as error:
                    request.error = error
                    self.parts.remove(part)
                    if part.numbering is not None and (gap := part.numbering.gap_behind(error)) is not None:
                        stopped.setdefault(part.sender, gap)
            if len(self.parts) == len(requests):  # each alone is accepted
                raise refusal
            self._rows = rows_of(self.parts, destination) if self.parts else None

    def encode_alone(self) -> None:
        """The same of one sender."""
        self._rows = by_newest(self._log, lambda snapshot: rows_of(self.parts, snapshot.destination))

    def commit(self, wait_s: float = 0) -> None:
        """Raises what `log.send.send` raises."""
        if self._rows is None:
            return
        first = 0
        for part in self.parts:
            part.first, first = first, first + len(part.messages)
        numbered = [part.numbering.of(len(part.messages)) for part in self.parts if part.numbering is not None]
        if numbered:  # what is certain now is not staged
            new_versions(self._log.snapshot.transactions, numbered, self._log.name)
        files, routed_by = by_newest(self._log, lambda snapshot: (self._stage(snapshot.destination), snapshot.route_id))
        ahead = self._waiting.keys() & self.senders() if self._waiting else None
        if ahead:  # when there is room, or the pause ends, the message before it goes first
            discard(self._log.storage, files)
            raise own_copy(self._waiting[ahead.pop()])
        self._committing = True
        self.sent = send(self._log, files, routed_by, reroute=self._stage_again, wait_s=wait_s, numbered=numbered)
        for file in self.sent.files:
            if file.path in self._stored:
                self._log.recent.add(file.path, self._stored[file.path], file.bytes)

    def _stage(self, destination: Destination) -> list[StagedFile]:
        assert self._rows is not None
        writer = MessageWriter(self._log.storage, destination, turn=0)
        try:
            groups = routing_groups(self._rows, destination.handles_units_of_work)
            routed = _route(destination, groups, self.parts)
            self.members = routed.members.tolist()
            writer.write_routed(self._rows, routed.members, routed.placed)
            self._files, self._stored = writer.close(), writer.singles
        except BaseException:
            writer.abort()
            raise
        return self._files

    def _stage_again(self, files: Sequence[StagedFile], destination: Destination) -> list[StagedFile]:
        """The members changed since the files were staged."""
        discard(self._log.storage, files)
        return self._stage(destination)

    def let_go(self) -> None:
        """Of what no sender reads any more. Each part knows its shipment; without this cycle messages and rows leave the memory
        at once, and senders pay less for the garbage collector."""
        self.parts, self._rows, self._stored = [], None, {}

    @cached_property
    def ordinals(self) -> list[int]:
        """Of each row, within its member's file."""
        written: Counter[int] = Counter()
        found = []
        for member in self.members:
            found.append(written[member])
            written[member] += 1
        return found

    @cached_property
    def tokens(self) -> dict[int, str]:
        """Of each member's file, by which its message ids begin."""
        assert self.sent is not None
        return {file.member: file.token for file in self.sent.files}

    def senders(self) -> set[tuple[Sender, int]]:
        """The senders of the messages, each with the members that its messages go to. A producer with an id keeps one order for
        all members."""
        return {
            (part.sender, _EVERY_MEMBER if part.numbering is not None else member)
            for part in self.parts
            for member in self.members[part.first : part.first + len(part.messages)]
        }

    def note_failure(self, error: Exception) -> None:
        """Of all parts, or of the only one."""
        for part in self.parts:
            if isinstance(error, AlreadySentError):
                part.duplicate = True
            elif not _waits(error):
                part.failed(error)

    def is_sent(self) -> bool:
        """For senders whose leader was interrupted. False: certainly not, and it will not be. Raises
        CommitOutcomeUnknownError when the storage cannot tell."""
        if self.sent is None and self._committing:
            self.sent = find(self._log, self._files)
        return self.sent is not None


def _note_failures(outgoing: Sequence[OutgoingMessages], outcomes: Mapping[int, Part | Exception]) -> None:
    for number, outcome in outcomes.items():
        numbering = outgoing[number].numbering
        if numbering is not None and isinstance(outcome, Exception):
            numbering.failed(outcome)


def _waits_for_room(error: object) -> TypeGuard[QuotaExceededError]:
    return isinstance(error, QuotaExceededError) and not isinstance(error, LargerThanQuotaError)


def _waits(error: object) -> TypeGuard[InsertionPausedError | QuotaExceededError]:
    return isinstance(error, InsertionPausedError) or _waits_for_room(error)


def by_newest(log: DeltaLog, decide: Callable[[Snapshot], _Decided]) -> _Decided:
    """Decide by the declaration that this process knows. What that refuses, the newest one may accept: a limit was raised, a server
    was added. Raises what `decide` raises of the newest one."""
    known = log.snapshot
    try:
        return decide(known)
    except (*_REFUSALS, InvalidDestinationError):
        newest = log.refresh()
        if newest.destination == known.destination:
            raise
    return decide(newest)


def rows_of(parts: Sequence[Part], destination: Destination) -> pa.RecordBatch:
    """The messages as stored columns, without ids, in this order. Raises MessageFormatError or MessageSizeError."""
    times = [part.now_ms for part in parts for _ in part.messages]
    batch = to_columns([message for part in parts for message in part.messages], times)
    rows = normalise(batch, pa.array(times, pa.int64()), destination.max_message_bytes)
    if destination.handles_units_of_work:
        check_parts(rows)
    if destination.forward_delay_ms is not None:
        refuse_units(rows, destination.name)
    if any(part.threshold is not None for part in parts):
        thresholds = pa.array([part.threshold for part in parts for _ in part.messages], pa.int64())
        rows = compressed(rows, thresholds)
    units = [destination.default_unit(part.producer, part.unit) for part in parts]
    if not any(units):
        return rows
    firsts = accumulate((len(part.messages) for part in parts), initial=0)
    slices = (
        with_default_unit(rows.slice(first, len(part.messages)), unit)
        for first, part, unit in zip(firsts, parts, units, strict=False)
    )
    return pa.concat_batches(slices)


class _Routed(NamedTuple):
    """The member of each row, and the units of order among them that were placed as new ones, with their members."""

    members: pa.Int32Array
    placed: Mapping[str, int]


def _route(destination: Destination, groups: pa.Array, parts: Sequence[Part]) -> _Routed:
    """Each part by its own turn and balancing, as if it were sent alone."""
    routings = {balancing: balancing.routing(destination) for balancing in {part.balancing for part in parts}}
    if destination.members == 1:
        return _Routed(pa.repeat(pa.scalar(destination.member_ids[0], pa.int32()), len(groups)), {})
    own = [(routings[p.balancing], groups.slice(p.first, len(p.messages)), p.turn) for p in parts]
    placed = {unit: m for routing, units, _ in own for unit, m in routing.placed_units(units).items()}
    return _Routed(pa.concat_arrays([route(*each) for each in own]), placed)
