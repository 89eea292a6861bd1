"""A quota: who may send how much, decided by many processes without a server. Pure.

A quota's ledger is a sequence of entries; each has the whole state after it. A process reads the newest entry N, decides, and
creates entry N + 1 if there is none: of several processes one succeeds, and the others read again. The state has

    usages      for each destination, what it held when an entry last looked: committed and not finished
    requests    of senders: those that wait, in the order in which they registered, and those that have a reservation

    a request is    and this happens                                            it becomes
    ------------    ----------------                                            ----------
    absent          REGISTER  there is no room now, and it may wait             waiting
    absent          GRANT     there is room, and it is its turn                 reserved
    waiting         RENEW     its sender lives and waits                        waiting, in its place
    waiting         GRANT     there is room, and it is its turn                 reserved
    waiting         WITHDRAW  its sender gives up                               absent
    waiting         LAPSE     its sender has not renewed it for long            absent
    reserved        GRANT     the same batch is sent again (Spark), or another  reserved, under a new number
                              process completes what its sender has decided
    reserved        RENEW     it needs more than it has reserved, and waits     reserved, in its place
    reserved        WITHDRAW  its sender will not commit                        absent
    reserved        END       its transaction is in the destination's log       absent

`TRANSITIONS` is this table, and every change goes through it.

**The log ends a reservation.** A reservation has a slot of its destination and a number, that of its entry. The commit of its
messages has the transaction (`quota/<ledger>/<slot>`, number), and is refused when the log has it. A sender that needs the room
of an old reservation commits the same transaction without messages. The first of the two decides, as for transfers. So a sender
writes one entry, before its commit; the next entry that looks at the destination finds the transaction, and removes the
reservation together with entering the new usage. Slots are used again, so a log has few such transactions.

**Each process judges by its own clock.** A request is old when a process has seen it unchanged for some seconds (`QuotaWatch`). A
sender that waits renews its request, which changes it. So no process compares its clock with another's, and a process that has just
started ends nothing.

**Why used + reserved never exceeds the maximum.** A grant checks it, on the newest entry, after it has looked at its destination.
What a destination commits is in an open reservation, until an entry looks at one version of its log and moves it from reserved
to used: the sum does not change. An entry that does not look at a destination keeps its old usage and its reservations.

**Why no request overtakes, and none starves.** With the policy FIFO a grant also checks that no request for the same destination
waits that was registered before. Other destinations of the quota do not wait for it: a large send to one of them leaves the room
that it cannot use to the others. They could take each bit of room for ever, so this ends after PATIENCE entries: no destination
overtakes a request that has waited through so many. A dead sender's request lapses, because it is not renewed. A request that has
room already waits for no other: the process that completes what its sender has decided uses the reservation, also where the maximum
was lowered meanwhile.

**A destination that cannot be read** keeps its usage and its reservations, and the others continue.

The exceptions, where usage may exceed the maximum: it was lowered; a destination with messages joined the quota; `shared` is being
changed; messages move between members of one destination, where they count twice until the transfer has ended.

Features: T1, T2, T3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any

from spark_jms.core.destinations.destination import Subscription
from spark_jms.core.transactions.transaction import step_of

FIFO, PREEMPTIVE = "FIFO", "Preemptive"
UNLIMITED = -1
FORMAT_VERSION = 2  # of a published usage; 1 counts the bytes of files
WAITING_S = 6.0  # unchanged for so long, a waiting request is old
RENEW_S = WAITING_S / 3
RESERVED_S = 5.0  # unchanged for so long, a reservation is old
ABANDONED_MS = 600_000
PATIENCE = 100  # entries: a request that has waited through them is overtaken by no destination of the quota


# -- usage: what a destination holds for its consumers -----------------------------------------------------------------
@dataclass(frozen=True)
class MessageUsage:
    messages: int = 0
    bytes: int = 0

    def __add__(self, other: MessageUsage) -> MessageUsage:
        return MessageUsage(self.messages + other.messages, self.bytes + other.bytes)

    def __sub__(self, other: MessageUsage) -> MessageUsage:
        return MessageUsage(self.messages - other.messages, self.bytes - other.bytes)

    def to_json(self) -> list[int]:
        return [self.messages, self.bytes]

    @staticmethod
    def from_json(value: Any) -> MessageUsage:
        messages, size = value
        return MessageUsage(int(messages), int(size))


def total(usages: Iterable[MessageUsage]) -> MessageUsage:
    return sum(usages, MessageUsage())


@dataclass(frozen=True)
class MemberUsage:
    """What was unfinished of the sequences 1 to `last` of a member on `server`."""

    last: int
    unfinished: MessageUsage
    server: str


@dataclass(frozen=True)
class PublishedUsage:
    """What a process has published of one table. A member that is not in it has published nothing.

    Senders open no store, so they cannot read what consumers have finished. A process that can, publishes for each member what was
    unfinished up to the member's last sequence at that time. A sender adds what its own snapshot of the log has behind that
    sequence:

        usage now = the published usage + the messages behind the published last sequences

    A subscription that began before these, and of which the publication does not know, may have all of them: then all messages in
    the log count until the next publication.

    A purge publishes before it takes files out of the log. So the newest publication knows them as finished, and a late one, which
    does not, is refused: usage that fell with the files does not rise again.

    Messages in flight, delayed and claimed ones are not finished. A topic's message is finished when every subscription has
    finished it, and counts once. A publication that is late overstates the usage; nothing understates it.

    Bytes are those of the messages: core/messages/message_bytes.py.
    """

    destination: str
    members: Mapping[int, MemberUsage] = field(default_factory=dict)
    subscriptions: Mapping[str, int] = field(default_factory=dict)  # the durable ones, and when each was created, in ms

    def of(self, member: int, subscriptions: Iterable[Subscription]) -> MemberUsage | None:
        """None: nothing is known of the member, as these are the durable subscriptions now."""
        known = self.members.get(member)
        new = (one for one in subscriptions if self.subscriptions.get(one.name) != one.created_ms)
        return None if known is None or any(one.floor(member, known.last) < known.last for one in new) else known

    def to_json(self) -> dict[str, Any]:
        return {
            "formatVersion": FORMAT_VERSION,
            "destination": self.destination,
            "members": {str(m): [u.last, *u.unfinished.to_json(), u.server] for m, u in sorted(self.members.items())},
            "subscriptions": dict(sorted(self.subscriptions.items())),
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> PublishedUsage | None:
        """None: another version wrote it. Raises KeyError, ValueError or TypeError when it is damaged."""
        if int(value["formatVersion"]) != FORMAT_VERSION:
            return None
        members = {
            int(member): MemberUsage(int(last), MessageUsage(int(messages), int(size)), str(server))
            for member, (last, messages, size, server) in value["members"].items()
        }
        subscriptions = {str(name): int(created_ms) for name, created_ms in value.get("subscriptions", {}).items()}
        return PublishedUsage(str(value["destination"]), members, subscriptions)


# -- the ledger --------------------------------------------------------------------------------------------------------
class QuotaRequestState(Enum):
    ABSENT = auto()
    WAITING = auto()
    RESERVED = auto()


class QuotaRequestEvent(Enum):
    REGISTER = auto()
    GRANT = auto()
    RENEW = auto()
    WITHDRAW = auto()
    LAPSE = auto()
    END = auto()


_S, _E = QuotaRequestState, QuotaRequestEvent
TRANSITIONS: Mapping[tuple[QuotaRequestState, QuotaRequestEvent], QuotaRequestState] = {
    (_S.ABSENT, _E.REGISTER): _S.WAITING,
    (_S.ABSENT, _E.GRANT): _S.RESERVED,
    (_S.WAITING, _E.RENEW): _S.WAITING,
    (_S.WAITING, _E.GRANT): _S.RESERVED,
    (_S.WAITING, _E.WITHDRAW): _S.ABSENT,
    (_S.WAITING, _E.LAPSE): _S.ABSENT,
    (_S.RESERVED, _E.GRANT): _S.RESERVED,
    (_S.RESERVED, _E.RENEW): _S.RESERVED,
    (_S.RESERVED, _E.WITHDRAW): _S.ABSENT,
    (_S.RESERVED, _E.END): _S.ABSENT,
}


@dataclass(frozen=True)
class Limit:
    """UNLIMITED: no maximum. `shared`: all destinations of the quota compete; otherwise each of their members has the maximum for
    itself."""

    messages: int = UNLIMITED
    bytes: int = UNLIMITED
    shared: bool = True
    policy: str = FIFO

    def allows(self, usage: MessageUsage) -> bool:
        return _within(usage.messages, self.messages) and _within(usage.bytes, self.bytes)


def _within(value: int, maximum: int) -> bool:
    return maximum == UNLIMITED or value <= maximum


@dataclass(frozen=True)
class Request:
    """`id` is unique to the send; a repeated Spark batch has the same. `by` names the sender for people."""

    id: str
    destination: str
    need: MessageUsage
    by: str


@dataclass(frozen=True)
class OpenRequest:
    """`number` is that of the entry in which it was registered or reserved, above the ledger's base. `until_ms`: when other senders
    may take its place, by its sender's clock; another value with each renewal. `slot`: of a reservation."""

    request: Request
    state: QuotaRequestState
    number: int
    until_ms: int
    slot: int = 0

    @property
    def waits(self) -> bool:
        return self.state is QuotaRequestState.WAITING


@dataclass(frozen=True)
class Observation:
    """A destination at one version of its log: its usage, the newest number of each slot that has an open reservation, and the
    highest of all slots, where the ledger does not count the destination yet."""

    usage: MessageUsage
    numbers: Mapping[int, int] = field(default_factory=dict)
    highest: int = 0


_NOT_LOOKED = Observation(MessageUsage())


@dataclass(frozen=True)
class QuotaState:
    """`number` is that of the entry that has this state. `base`: when the ledger began, in ms, or more: requests get base + number,
    and those of a ledger that was deleted or restored must be above all that the logs of its destinations know."""

    number: int = 0
    base: int = 0
    usages: Mapping[str, MessageUsage] = field(default_factory=dict)
    requests: tuple[OpenRequest, ...] = ()

    # -- reading --------------------------------------------------------------------------------------------------
    @property
    def used(self) -> MessageUsage:
        return total(self.usages.values())

    @property
    def reserved(self) -> MessageUsage:
        return total(one.request.need for one in self.requests if not one.waits)

    @property
    def waiting(self) -> list[OpenRequest]:
        """In the order in which they registered."""
        return sorted((one for one in self.requests if one.waits), key=lambda one: one.number)

    def find(self, id: str) -> OpenRequest | None:
        return next((one for one in self.requests if one.request.id == id), None)

    def slots(self, destination: str) -> list[int]:
        """Of its open reservations."""
        return [one.slot for one in self.requests if not one.waits and one.request.destination == destination]

    def is_same_of(self, destination: str, other: QuotaState) -> bool:
        """Its usage and its reservations are the same in both."""
        return self.usages.get(destination) == other.usages.get(destination) and self.slots(destination) == other.slots(
            destination
        )

    @property
    def reservations(self) -> list[OpenRequest]:
        return [one for one in self.requests if not one.waits]

    def room_for(self, request: Request, limit: Limit) -> bool:
        known = self.find(request.id)
        own = known.request.need if known is not None and not known.waits else MessageUsage()
        return limit.allows(self.used + self.reserved - own + request.need)

    def is_next(self, request: Request) -> bool:
        """No request for its destination waits before it, nor one for another destination that has lost its patience."""
        now, known = self.base + self.number, self.find(request.id)
        number = known.number if known is not None else now
        before = (one for one in self.waiting if one.number < number and one.request.id != request.id)
        return not any(one.request.destination == request.destination or now - one.number > PATIENCE for one in before)

    def has_turn(self, request: Request, limit: Limit) -> bool:
        return limit.policy != FIFO or self.is_next(request)

    # -- changing: the next entry -----------------------------------------------------------------------------------
    def successor(self, now_ms: int = 0) -> QuotaState:
        """The state of the next entry, before anything has changed."""
        return replace(self, number=self.number + 1, base=self.base or now_ms)

    def observe(self, found: Mapping[str, Observation | None]) -> QuotaState:
        """What these destinations hold now, without the reservations that their logs have ended. None: the destination does not
        exist any more, or has another quota; nor has it requests here."""
        usages = {name: usage for name, usage in self.usages.items() if name not in found}
        highest = max((one.highest for one in found.values() if one is not None), default=0)
        after = replace(
            self,
            base=max(self.base, highest),
            usages={**usages, **{name: one.usage for name, one in found.items() if one is not None}},
        )
        for one in self.requests:
            looked = found.get(one.request.destination, _NOT_LOOKED)
            if looked is None:
                after = after._change(one.request, _E.WITHDRAW)
            elif not one.waits and looked.numbers.get(one.slot, 0) >= one.number:
                after = after._change(one.request, _E.END)
        return after

    def lapse(self, old: Container[OpenRequest]) -> QuotaState:
        """Without the waiting requests that are old."""
        after = self
        for one in self.waiting:
            if one in old:
                after = after._change(one.request, _E.LAPSE)
        return after

    def grant(self, request: Request, limit: Limit, until_ms: int) -> QuotaState | None:
        """None when there is no room, or with FIFO it is not its turn. What a request has reserved it gets again."""
        if not self.has_reserved(request) and not (self.has_turn(request, limit) and self.room_for(request, limit)):
            return None
        return self._change(request, _E.GRANT, until_ms)

    def has_reserved(self, request: Request) -> bool:
        """So much, or more."""
        known = self.find(request.id)
        if known is None or known.waits:
            return False
        left = known.request.need - request.need
        return left.messages >= 0 and left.bytes >= 0

    def wait(self, request: Request, until_ms: int) -> QuotaState:
        """Register a request behind the others, or renew it in its place, with what it has reserved."""
        return self._change(request, _E.REGISTER if self.find(request.id) is None else _E.RENEW, until_ms)

    def withdraw(self, request: Request, number: int | None = None) -> QuotaState:
        """Remove a waiting request, or the reservation with this number, unless another process has removed or replaced it."""
        known = self.find(request.id)
        if known is None or (known.number != number and not known.waits):
            return self
        return self._change(request, _E.WITHDRAW)

    def _change(self, request: Request, event: QuotaRequestEvent, until_ms: int = 0) -> QuotaState:
        known = self.find(request.id)
        before = known.state if known is not None else _S.ABSENT
        state = step_of(TRANSITIONS, before, event, f"the request of {request.by}")
        others = tuple(one for one in self.requests if one.request.id != request.id)
        if state is _S.ABSENT:
            return replace(self, requests=others)
        if known is not None and event is _E.RENEW:
            renewed = replace(
                known, request=request if known.waits else known.request, until_ms=max(until_ms, known.until_ms + 1)
            )
            return replace(self, requests=(*others, renewed))
        number = self.base + self.number
        slot = 0
        if state is _S.RESERVED:
            taken = set(replace(self, requests=others).slots(request.destination))
            slot = next(free for free in range(len(taken) + 1) if free not in taken)
        return replace(self, requests=(*others, OpenRequest(request, state, number, until_ms, slot)))

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "base": self.base,
            "usages": {name: usage.to_json() for name, usage in sorted(self.usages.items())},
            "requests": [_to_json(one) for one in self.requests],
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> QuotaState:
        """Raises KeyError, ValueError or TypeError."""
        usages = {str(name): MessageUsage.from_json(usage) for name, usage in value["usages"].items()}
        return QuotaState(int(value["number"]), int(value["base"]), usages, tuple(_from_json(value["requests"])))


def _to_json(one: OpenRequest) -> dict[str, Any]:
    return {
        "id": one.request.id,
        "destination": one.request.destination,
        "need": one.request.need.to_json(),
        "by": one.request.by,
        "state": one.state.name.lower(),
        "number": one.number,
        "untilMs": one.until_ms,
        "slot": one.slot,
    }


def _from_json(values: Iterable[Mapping[str, Any]]) -> Iterable[OpenRequest]:
    for value in values:
        request = Request(
            str(value["id"]), str(value["destination"]), MessageUsage.from_json(value["need"]), str(value["by"])
        )
        state = QuotaRequestState[str(value["state"]).upper()]
        yield OpenRequest(request, state, int(value["number"]), int(value["untilMs"]), int(value["slot"]))


@dataclass(frozen=True)
class Grant:
    """A reservation in a quota's ledger, under the `number` of its entry. `epoch`: of the destination's declaration, which must not
    have changed when it is used: another quota, and back, may have removed it. `member`: for whose messages alone; None: for those
    of all that the quota counts."""

    quota: str
    ledger: str
    request: Request
    number: int
    slot: int
    epoch: int
    member: int | None = None

    @property
    def transaction(self) -> str:
        """The application id of the transaction that ends it, with its number as the version."""
        return transaction_id(self.ledger, self.slot)


def transaction_id(ledger: str, slot: int) -> str:
    return f"quota/{ledger}/{slot}"


# -- old requests ------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class QuotaWatch:
    """How long one process has seen the requests of a quota's ledger unchanged. `since_s`: when the process first saw each request as
    it is, by its monotonic clock.

    Senders on other hosts have other clocks, so a process judges by its own: it notes when it has first seen a request as it is
    now. A sender that waits renews its request every few seconds, which changes it. One that has died does not, and one whose
    reservation stays the same has not committed.

        a request is    and the process has seen it unchanged for    so it is
        ------------    -----------------------------------------    --------------------------------------------
        waiting         WAITING_S                                    old: it lapses
        reserved        RESERVED_S                                   old: the sender that needs the room ends it

    A process that lives for less than that, as `jmsq send`, would see no request as old. It takes those for old whose time by the
    clock of their own sender ended ABANDONED_MS ago, far more than clocks differ.
    """

    since_s: Mapping[OpenRequest, float] = field(default_factory=dict)

    def after(self, requests: Iterable[OpenRequest], now_s: float) -> QuotaWatch:
        """The process sees these requests now, and no others."""
        return QuotaWatch({one: self.since_s.get(one, now_s) for one in requests})

    def old(self, now_s: float, now_ms: int) -> frozenset[OpenRequest]:
        """`now_ms` is the wall clock's."""
        return frozenset(
            one
            for one, since_s in self.since_s.items()
            if now_s - since_s >= (WAITING_S if one.waits else RESERVED_S) or one.until_ms + ABANDONED_MS < now_ms
        )
