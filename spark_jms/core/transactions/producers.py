"""Producers: the numbers of a producer id, and sends that need not wait. Pure.

**Idempotent producers.** The messages of a producer id are numbered 1, 2, 3 … in each destination. The destination's table keeps
one Delta transaction for each producer id, `producer/<id>`. Its version holds two numbers:

    version = epoch * 2**40 + last        epoch: of the last opening of the id       last: of the last message of the id

Every commit with messages of the id writes the version that holds their last number, so the messages and their count are in the
log together or not at all. Delta forgets no transaction, so a number is recognised for ever.

Opening a producer with an id commits (epoch + 1, last). From that commit on, the table refuses messages of earlier openings, also
those that are staged: their commit has to decide again on the newer log. So `last` is exact once an id is open. A commit whose
outcome is unknown may arrive later, but only as the log version that it was written for; a producer that resumes commits its
version unchanged, which takes that place. Before a program has resumed, it can only repeat a message by its number.

`VERDICTS` is what a table says to messages with the numbers first … first + count - 1:

    opening of the table's version    the numbers             verdict
    ------------------------------    -----------             -------
    the producer's                    begin with last + 1     APPEND   also those of messages without a number of their own
                                      end with last or less   DROP     they are in the table: repeating them sends nothing
                                      both                    CONFLICT some are in the table: an earlier attempt has arrived late
                                      begin above last + 1    GAP
    a later one                       any                     FENCED
    an earlier one, or none           any                     LOST     the table is older than the opening: a restored backup

A gap is refused, not allowed: the missing message has failed, and once a later one is in the table, repeating the missing one
would drop it as a duplicate. A program whose own numbers have gaps counts its messages instead.

Messages that the producer counts by itself get their number in the commit, so the threads that share a producer leave no gap. An
application that waits for each send learns of an error before it sends the next message. One that does not wait would send
message k + 1 as number k after message k has failed, and after a restart it would continue at the wrong message. So the producer
stops:

    state       event                                        next        sends without a number
    -----       -----                                        ----        ----------------------
    COUNTING    FAILED: an asynchronous send has failed      STOPPED     are sent
    COUNTING    UNKNOWN: the outcome of a send is unknown    STOPPED
    STOPPED     RESUMED: the application has read `last`     COUNTING    raise SequenceGapError
    any         FENCED                                       FENCED      raise ProducerFencedError

**One-way sends.** A connection factory with `oneWaySendMode` lets producers send without waiting. The first rule of UPGRADES that
holds makes a send two-way: it waits, also for the one-way sends before it. WebLogic's other cases cannot occur here, or concern
other calls: XA and transacted sessions are `send_many(transaction=…)`, which always waits, as `send_table` and
`send_unit_of_work` do.

Every `oneWaySendWindowSize`-th send in a row is two-way too. What a one-way send that fails does to its producer depends on its error:

    state      event      next       so
    -----      -----      ----       --
    OPEN       DELETED    TWO_WAY    the message is deleted and counted: over quota, paused, its server stopped
    OPEN       FAILED     CLOSED     the message is lost; the producer is closed, and the application learns it: the storage or the
                                     server has failed
    TWO_WAY    WAITED     OPEN       a two-way send has succeeded: the condition is over

Features: M1, T11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import INSERTION, PRODUCTION
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.messages.columns import NON_PERSISTENT
from spark_jms.errors import CommitConflictError, JmsqError, OptionError, ProducerFencedError, SequenceGapError
from spark_jms.settings.connection_factory import TOPIC_ONLY, ConnectionFactory

MAX_SEQUENCE = 2**40 - 1
_PREFIX = "producer/"
_LONGEST_ID = 256


@dataclass(frozen=True)
class ProducerPosition:
    """What the table knows of a producer id."""

    epoch: int = 0
    last: int = 0

    @classmethod
    def of(cls, version: int | None) -> ProducerPosition:
        return cls() if version is None else cls(*divmod(version, MAX_SEQUENCE + 1))

    @property
    def version(self) -> int:
        return self.epoch * (MAX_SEQUENCE + 1) + self.last

    def opened(self) -> ProducerPosition:
        return ProducerPosition(self.epoch + 1, self.last)


@dataclass(frozen=True)
class NumberedMessages:
    """`count` messages of one opening of a producer id. `first` None: the commit numbers them behind the last one."""

    producer_id: str
    epoch: int
    count: int
    first: int | None = None

    def first_behind(self, position: ProducerPosition) -> int:
        return position.last + 1 if self.first is None else self.first


class OpeningOrder(Enum):
    EARLIER = auto()
    SAME = auto()
    LATER = auto()


class Numbers(Enum):
    NEXT = auto()
    SENT = auto()
    PARTLY_SENT = auto()
    GAP = auto()


class SendVerdict(Enum):
    APPEND = auto()
    DROP = auto()
    CONFLICT = auto()
    GAP = auto()
    FENCED = auto()
    LOST = auto()


VERDICTS: Mapping[tuple[OpeningOrder, Numbers], SendVerdict] = {
    (OpeningOrder.SAME, Numbers.NEXT): SendVerdict.APPEND,
    (OpeningOrder.SAME, Numbers.SENT): SendVerdict.DROP,
    (OpeningOrder.SAME, Numbers.PARTLY_SENT): SendVerdict.CONFLICT,
    (OpeningOrder.SAME, Numbers.GAP): SendVerdict.GAP,
    **{(OpeningOrder.LATER, numbers): SendVerdict.FENCED for numbers in Numbers},
    **{(OpeningOrder.EARLIER, numbers): SendVerdict.LOST for numbers in Numbers},
}


class AlreadySentError(JmsqError):
    """All of these messages are in the table already, by their numbers: nothing was sent."""


class PartlySentError(CommitConflictError):
    """Some of these messages are in the table already, by their numbers: nothing was sent now."""


def verdict(position: ProducerPosition, messages: NumberedMessages) -> SendVerdict:
    return VERDICTS[_opening(position, messages), _numbers(position, messages)]


def _opening(position: ProducerPosition, messages: NumberedMessages) -> OpeningOrder:
    if position.epoch == messages.epoch:
        return OpeningOrder.SAME
    return OpeningOrder.LATER if position.epoch > messages.epoch else OpeningOrder.EARLIER


def _numbers(position: ProducerPosition, messages: NumberedMessages) -> Numbers:
    first = messages.first_behind(position)
    if first == position.last + 1:
        return Numbers.NEXT
    if first > position.last + 1:
        return Numbers.GAP
    return Numbers.SENT if first + messages.count - 1 <= position.last else Numbers.PARTLY_SENT


def new_versions(
    transactions: Mapping[str, int], messages: Iterable[NumberedMessages], destination: str
) -> dict[str, int]:
    """The transactions of a commit with all these messages, in this order. Raises AlreadySentError, SequenceGapError,
    ProducerFencedError, and CommitConflictError for messages of which some are in the table."""
    positions: dict[str, ProducerPosition] = {}
    for part in messages:
        app_id = app_id_of(part.producer_id)
        position = positions.get(app_id) or ProducerPosition.of(transactions.get(app_id))
        found = verdict(position, part)
        if found is not SendVerdict.APPEND:
            raise _refusal(found, part, position, destination)
        positions[app_id] = ProducerPosition(position.epoch, position.last + part.count)
    return {app_id: position.version for app_id, position in positions.items()}


def _refusal(found: SendVerdict, part: NumberedMessages, position: ProducerPosition, destination: str) -> JmsqError:
    who = f"{destination}: producer id {part.producer_id}"
    first, end = part.first_behind(position), part.first_behind(position) + part.count - 1
    numbers = f"number {first:,}" if first == end else f"numbers {first:,} to {end:,}"
    match found:
        case SendVerdict.DROP:
            return AlreadySentError(f"{who}: {numbers} is in the table already: nothing was sent")
        case SendVerdict.CONFLICT:
            return PartlySentError(
                f"{who}: of {numbers} the table has those up to {position.last:,} already: nothing was sent now; continue with number "
                f"{position.last + 1:,}"
            )
        case SendVerdict.GAP:
            return SequenceGapError(
                f"{who}: {numbers} was sent, but the last number in the table is {position.last:,}: nothing was sent, because the "
                f"messages between would be lost; send number {position.last + 1:,} first"
            )
        case _:
            return fenced(part, position, destination)


def fenced(part: NumberedMessages, position: ProducerPosition, destination: str) -> ProducerFencedError:
    """For messages of an opening that the table does not have as its last one."""
    who = f"{destination}: producer id {part.producer_id}"
    if position.epoch > part.epoch:
        return ProducerFencedError(
            f"{who} was opened again, by this or another program (opening {position.epoch:,}, this producer is opening "
            f"{part.epoch:,}): nothing was sent; close this producer, and let one program at a time use the id"
        )
    return ProducerFencedError(
        f"{who}: the table does not know this producer's opening {part.epoch:,}, so it was restored from an older copy: nothing was "
        "sent; create the producer again and continue behind its last_sequence"
    )


def app_id_of(producer_id: str) -> str:
    return _PREFIX + producer_id


def producers_of(transactions: Mapping[str, int]) -> dict[str, ProducerPosition]:
    """All producer ids of a table, in order."""
    known = sorted(app_id for app_id in transactions if app_id.startswith(_PREFIX))
    return {app_id.removeprefix(_PREFIX): ProducerPosition.of(transactions[app_id]) for app_id in known}


def check_producer_id(producer_id: object) -> str:
    """Raises OptionError."""
    if isinstance(producer_id, str) and 0 < len(producer_id) <= _LONGEST_ID and producer_id.isprintable():
        return producer_id
    raise OptionError(f"producer_id is {producer_id!r}, but must be 1 to {_LONGEST_ID} printable characters")


def check_sequence(sequence: object) -> int:
    """Raises OptionError."""
    if type(sequence) is int and 0 < sequence <= MAX_SEQUENCE:
        return sequence
    raise OptionError(f"sequence is {sequence!r}, but must be a whole number of 1 to {MAX_SEQUENCE:,}")


# -- counting ----------------------------------------------------------------------------------------------------------
class CountingState(Enum):
    COUNTING = "counting"
    STOPPED = "stopped"
    FENCED = "fenced"


class CountingEvent(Enum):
    FAILED = "an asynchronous send has failed"
    UNKNOWN = "the outcome of a send is unknown"
    RESUMED = "the application has read the last number"
    FENCED = "the producer id was opened again"


_S, _E = CountingState, CountingEvent
TRANSITIONS: Mapping[tuple[CountingState, CountingEvent], CountingState] = {
    (_S.COUNTING, _E.FAILED): _S.STOPPED,
    (_S.COUNTING, _E.UNKNOWN): _S.STOPPED,
    (_S.COUNTING, _E.RESUMED): _S.COUNTING,
    (_S.STOPPED, _E.FAILED): _S.STOPPED,
    (_S.STOPPED, _E.UNKNOWN): _S.STOPPED,
    (_S.STOPPED, _E.RESUMED): _S.COUNTING,
    **{(state, _E.FENCED): _S.FENCED for state in _S},
    **{(_S.FENCED, event): _S.FENCED for event in _E},
}


# -- one-way sends -----------------------------------------------------------------------------------------------------
class OneWayState(Enum):
    OPEN = "open"
    TWO_WAY = "two-way"
    CLOSED = "closed"


class OneWayEvent(Enum):
    WAITED = "a two-way send has succeeded"
    DELETED = "a one-way send was refused for the state of its destination"
    FAILED = "a one-way send has failed"


_OneWay, _OneWayEvent = OneWayState, OneWayEvent
ONE_WAY_TRANSITIONS: dict[tuple[OneWayState, OneWayEvent], OneWayState] = {
    (_OneWay.OPEN, _OneWayEvent.WAITED): _OneWay.OPEN,
    (_OneWay.OPEN, _OneWayEvent.DELETED): _OneWay.TWO_WAY,
    (_OneWay.OPEN, _OneWayEvent.FAILED): _OneWay.CLOSED,
    (_OneWay.TWO_WAY, _OneWayEvent.WAITED): _OneWay.OPEN,
    (_OneWay.TWO_WAY, _OneWayEvent.DELETED): _OneWay.TWO_WAY,
    (_OneWay.TWO_WAY, _OneWayEvent.FAILED): _OneWay.CLOSED,
    (_OneWay.CLOSED, _OneWayEvent.WAITED): _OneWay.CLOSED,  # another thread's, which was under way
    (_OneWay.CLOSED, _OneWayEvent.DELETED): _OneWay.CLOSED,
    (_OneWay.CLOSED, _OneWayEvent.FAILED): _OneWay.CLOSED,
}


@dataclass(frozen=True)
class OneWayRule:
    """Of one producer: its connection factory, the address that it was made for, and its connection's home server (None: it
    has none, and is on the domain's own)."""

    factory: ConnectionFactory
    address: DestinationAddress
    home: str | None


@dataclass(frozen=True)
class OneWayCase:
    """One message, on its way to a destination as the sender knows it."""

    rule: OneWayRule
    destination: Destination
    delivery_mode: int
    group_id: str | None
    unit_of_work: object

    def members(self) -> list[int]:
        named = self.rule.address.members(self.destination)
        return list(self.destination.member_ids) if named is None else named


def _spread(case: OneWayCase) -> bool:
    """WebLogic sends one-way to a physical member, not to the logical name. `home@orders` may name several members."""
    return case.destination.kind.startswith("distributed-") and (
        case.rule.address.server is None or len(case.members()) > 1
    )


def _elsewhere(case: OneWayCase) -> bool:
    host = case.rule.home or HOME
    return any(case.destination.server_of(member) != host for member in case.members())


def _stopped(case: OneWayCase) -> bool:
    members, pauses = case.members(), case.destination.pauses
    paused = pauses.members(PRODUCTION, members) | pauses.members(INSERTION, members)
    return bool(paused) or not case.destination.down_members.isdisjoint(members)


UPGRADES: tuple[tuple[str, Callable[[OneWayCase], bool]], ...] = (
    (
        "the connection factory lets only topics' messages go one-way",
        lambda case: case.rule.factory.one_way_send_mode == TOPIC_ONLY and not case.destination.is_topic,
    ),
    ("the message is persistent", lambda case: case.delivery_mode != NON_PERSISTENT),
    (
        "the message has a unit of order",
        lambda case: (
            case.group_id is not None
            or case.destination.default_unit("", case.rule.factory.default_unit_of_order) is not None
        ),
    ),
    ("the message is part of a unit of work", lambda case: case.unit_of_work is not None),
    ("the address names a distributed destination, not one member of it", _spread),
    ("the member is not on the server of the connection", _elsewhere),
    ("production or insertion is paused, or the server is down", _stopped),
)


def two_way_reason(case: OneWayCase) -> str | None:
    """Why this message is sent two-way; None: it may go one-way, if the window and the producer's state allow."""
    if not case.rule.factory.sends_one_way:
        return "the connection factory does not allow one-way sends"
    return next((reason for reason, holds in UPGRADES if holds(case)), None)
