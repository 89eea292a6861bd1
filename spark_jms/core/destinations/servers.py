"""The servers of destinations: where the members are, and when a server counts as away. Pure.

A server is a store; it has no process of its own. So the processes that use the store keep the server's lease: a small file in
the domain with a token, which they replace while the store answers them. Each process decides by what it sees itself:

    a process ...                       the lease is ...    and it ...
    -------------                       ----------------    ----------
    has an answer of the store          fresh               waits
                                        due, or challenged  renews it
                                        of a lapsed term    renews it, and begins a term in which it is held
    has answers, too late for users     not over            doubts it
                                        over                begins a term in which it has lapsed
    finds no store at its address       fresh, or due       challenges it
                                        challenged          waits
                                        over                begins a term in which it has lapsed
    has no answer, for whatever reason  not over            waits
                                        over                begins a term in which it has lapsed

No clocks are compared. A process measures by its own monotonic clock for how long it has seen the same token. A lease is *due*
after a third of its length, and *over* after its whole length. So one process that cannot reach the store changes nothing while
another one can: that one renews. No process ends the lease of a store that no process asks.

A store that hangs may only be slow, so nothing but the whole length tells. A killed one is known sooner: its address refuses
connections, or its folder does not exist. That proves no more than a firewall or an unmounted disk of this one host would.
So the process asks all others by a *challenge*, a mark in the lease's file. A process with an answer that it asked for after it
saw the mark renews the lease, which removes the mark. A lease that stays challenged for CHALLENGE_MS is over. An answered
challenge is not repeated before the length of the lease has passed.

A store may also answer, but too late for its users: they wait a limited time for a delivery. So where a delivery was late or
failed, its process takes *samples* (`Samples`), and its answers renew the lease only with a good one. Others may
have other ways to the store, so it asks them by a *doubt*, a second mark in the lease's file: from then on no process renews
without a good sample that it began after it saw the mark; one that has it removes the mark. Nor does a lapse end without a good
sample, whose limit is lower. While no delivery fails and no lease has lapsed, no samples are taken.

What can go wrong, and what it costs: processes with answers may all be slow when the lease ends, or stand still. Then a server
is down although its store answers; senders avoid it until the first process with an answer ends that term, within a second.
Nothing is lost by it, and no message comes twice: which messages are whose is in the store alone. A process that stood still
itself, for half of the length, begins to measure again, because the others may have stood still with it.

Features: D1, D4, D6, T10 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import cycle
from types import MappingProxyType
from typing import Any, NamedTuple

from spark_jms.core.messages.ranges import EMPTY, Ranges

HOME = "home"  # the server whose store is the domain's own
_MAX_PATTERN = 1024  # as many as there are slots
CHALLENGE_MS = 900.0
LOOK_MS = 400.0  # at least so often a process looks at the lease's file, and asks the store
ANSWER_MS = 1_100.0  # a question without an answer for so long counts as failed
SUSPICION_MS = 150.0  # after so long without an answer, a look at the store's address may tell more
# So long after its question an answer proves that the store is reached. At least one look meets each answer that came in time; and
# a store that hangs is down within its lease and 2 s, because no renewal rests on an older answer.
PROOF_MS = ANSWER_MS + LOOK_MS + 100.0
READ_MS, WRITE_MS = 2_000.0, 5_000.0
HOLD_EFFORT, RETURN_EFFORT = 0.8, 0.4
VALID_MS = READ_MS + WRITE_MS + 1_000.0  # so long after its begin a sample tells something
FAILED = math.inf
_SHORTEST_PAUSE_MS, _LONGEST_PAUSE_MS = 300.0, 10_000.0
_REST = 2.0  # a sample is followed by a pause of so many times its length, so that samples do not make a store slow


# -- where the members of a destination are ----------------------------------------------------------------------------
@dataclass(frozen=True)
class Placement:
    """Where the members of a destination are: their ids, their servers, and the slots of units of order.

    A destination that targets servers has one member on each (uniform). Ids are given once: a server that is removed and added
    again gets a member with a new id, so no record set, offset or acknowledgement ever means another member than it meant.

        the declaration ...        its member
        -------------------        ----------
        keeps a server             keeps its id and its messages
        adds a server              gets the next id
        removes a server           goes, if it is empty; else it leaves, and goes later

    `slots` is the first map of the units of order. When members are added or removed, slots move, and the table has a `SlotMap`.

    `members`: id and server of each member, in the order of the declaration. `next_id` was never used. Slot s of the
    units of order belongs to `slots[s % len(slots)]`.
    """

    members: tuple[tuple[int, str], ...]
    next_id: int
    slots: tuple[int, ...]

    def __post_init__(self) -> None:
        ids = self.ids
        if not ids or len(set(ids)) < len(ids) or not 0 <= min(ids) <= max(ids) < self.next_id:
            raise ValueError(f"members {self.members} and next id {self.next_id} do not agree")
        if len({server for _, server in self.members}) < len(ids):
            raise ValueError(f"a server has one member of a destination: {self.members}")
        if not self.slots or set(self.slots) - set(ids):
            raise ValueError(f"slots belong to members: {self.slots}")

    @staticmethod
    def first(servers: Sequence[str]) -> Placement:
        """Of a new destination."""
        ids = tuple(range(len(servers)))
        return Placement(tuple(zip(ids, servers, strict=True)), len(ids), ids)

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(member for member, _ in self.members)

    @property
    def servers(self) -> Mapping[int, str]:
        return dict(self.members)

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> dict[str, Any]:
        return {"members": [[*pair] for pair in self.members], "next": self.next_id, "slots": list(self.slots)}

    @staticmethod
    def from_json(stored: dict[str, Any]) -> Placement:
        """Raises KeyError, TypeError or ValueError."""
        members = tuple((int(member), str(server)) for member, server in stored["members"])
        return Placement(members, int(stored["next"]), tuple(int(slot) for slot in stored["slots"]))


def placed_on(
    servers: Sequence[str], members: Iterable[tuple[int, str]], slots: Sequence[int], next_id: int
) -> Placement:
    """The placement on `servers` of a destination that has these members and slots now. Of several members on one server the
    first is kept."""
    kept: dict[str, int] = {}
    for member, server in members:
        if server in servers:
            kept.setdefault(server, member)
    placed = []
    for server in servers:
        if server not in kept:
            kept[server], next_id = next_id, next_id + 1
        placed.append((kept[server], server))
    ids = [member for member, _ in placed]
    return Placement(tuple(placed), next_id, _owners(slots, ids))


def _owners(slots: Sequence[int], ids: Sequence[int]) -> tuple[int, ...]:
    """The pattern of slots without removed members, whose slots go to the others in turn. The pattern is repeated first, so
    that each of the others gets its share."""
    if all(owner in ids for owner in slots):
        return tuple(slots)
    repeated = tuple(slots) * max(min(len(ids), _MAX_PATTERN // len(slots)), 1)
    heirs = cycle(ids)
    return tuple(owner if owner in ids else next(heirs) for owner in repeated)


# -- a process's way to a store ----------------------------------------------------------------------------------------
class Reach(Enum):
    """What a process knows of its own way to the store."""

    ANSWERED = "it has an answer of the store"
    SLOW = "it has answers, too late for its users"
    ABSENT = "there is no store at its address"
    SILENT = "it has no answer"
    UNKNOWN = "it has just asked"


class Promptness(Enum):
    """Of a store's answers, as far as samples tell."""

    GOOD = "soon enough"
    SLOW = "too late for a delivery"
    UNKNOWN = "there is no sample"


def effort(read_ms: float, write_ms: float) -> float:
    return max(read_ms / READ_MS, write_ms / WRITE_MS)


def allowed_effort(*, lapsed: bool) -> float:
    return RETURN_EFFORT if lapsed else HOLD_EFFORT


@dataclass(frozen=True)
class Samples:
    """What one process knows by its samples of a store. Times are of its monotonic clock, in ms. `under_way_ms`: when the one began
    that has not ended.

    A consumer waits READ_MS for a server's part of a batch, and WRITE_MS for its claim; a server that needs longer is left out of
    the batch. A *sample* asks a store as much as one delivery does. Its *effort* is the share of that time which the store took for
    the questions or for the writes, whichever is the larger.

        the lease is    a sample speaks for the store with an effort of at most
        ------------    --------------------------------------------------------
        held            HOLD_EFFORT
        lapsed          RETURN_EFFORT

    In between the lease remains what it is. So a store whose delay is constant is up or down, and never both in turn.
    """

    under_way_ms: float | None = None
    begun_ms: float | None = None  # of the last one that ended
    ended_ms: float = 0.0
    effort: float = 0.0

    def begin(self, now_ms: float) -> Samples:
        return replace(self, under_way_ms=now_ms)

    def end(self, effort: float, now_ms: float) -> Samples:
        return Samples(None, self.under_way_ms, now_ms, effort)

    def is_due(self, now_ms: float) -> bool:
        if self.under_way_ms is not None or self.begun_ms is None:
            return self.under_way_ms is None
        pause_ms = _REST * (self.ended_ms - self.begun_ms)
        return now_ms - self.ended_ms >= min(max(pause_ms, _SHORTEST_PAUSE_MS), _LONGEST_PAUSE_MS)

    def promptness(self, now_ms: float, since_ms: float, *, lapsed: bool) -> Promptness:
        """Only a sample that began at `since_ms` or later, and not long ago, shows that a store is fast; an older one still shows
        that it is slow."""
        allowed = allowed_effort(lapsed=lapsed)
        if self.under_way_ms is not None and now_ms - self.under_way_ms > allowed * (READ_MS + WRITE_MS):
            return Promptness.SLOW
        if self.begun_ms is None:
            return Promptness.UNKNOWN
        if self.effort > allowed:
            return Promptness.SLOW
        return Promptness.GOOD if self.begun_ms >= max(since_ms, now_ms - VALID_MS) else Promptness.UNKNOWN


@dataclass(frozen=True)
class Contact:
    """What one process knows from asking a store. All times are of its monotonic clock, in ms, and of the question: an answer
    proves nothing about the time after it was asked for."""

    asked_ms: float | None = None  # the question that has no answer yet
    answered_ms: float | None = None
    failed_ms: float | None = None
    absent_ms: float | None = None  # a look at the address found no store

    def asked(self, now_ms: float) -> Contact:
        return replace(self, asked_ms=now_ms)

    def answered(self) -> Contact:
        return replace(self, asked_ms=None, answered_ms=self.asked_ms, absent_ms=None)

    def failed(self) -> Contact:
        return replace(self, asked_ms=None, failed_ms=self.asked_ms)

    def looked(self, now_ms: float, *, absent: bool) -> Contact:
        return replace(self, absent_ms=now_ms if absent else None)

    def is_suspicious(self, now_ms: float) -> bool:
        """Worth a look at the store's address."""
        waits = self.asked_ms is not None and now_ms - self.asked_ms >= SUSPICION_MS
        return waits or self._last_failed

    def reach(self, now_ms: float, challenged_ms: float | None) -> Reach:
        """An answer to a question from before the challenge does not answer it."""
        if self.absent_ms is not None and self.is_suspicious(now_ms):
            return Reach.ABSENT
        if self._last_failed or (self.asked_ms is not None and now_ms - self.asked_ms >= ANSWER_MS):
            return Reach.SILENT
        if self.answered_ms is None or now_ms - self.answered_ms > PROOF_MS:
            return Reach.UNKNOWN
        return Reach.UNKNOWN if challenged_ms is not None and self.answered_ms < challenged_ms else Reach.ANSWERED

    @property
    def _last_failed(self) -> bool:
        return self.failed_ms is not None and (self.answered_ms is None or self.failed_ms > self.answered_ms)


# -- the lease ---------------------------------------------------------------------------------------------------------
class Phase(Enum):
    """The lease, as one process sees it."""

    FRESH = "fresh"
    DUE = "due"
    CHALLENGED = "challenged"
    OVER = "over"


class Act(Enum):
    WAIT = "wait"
    RENEW = "renew the lease"
    CHALLENGE = "challenge the lease"
    DOUBT = "doubt the lease"
    TAKE_DOWN = "begin a term in which it has lapsed"
    TAKE_UP = "renew the lease, and begin a term in which it is held"


_HELD, _LAPSED = False, True
ACTS: Mapping[tuple[bool, Reach], Mapping[Phase, Act]] = MappingProxyType(
    {
        (lapsed, reach): dict(zip(Phase, acts, strict=True))
        for lapsed, reach, *acts in (
            #                         fresh          due            challenged    over
            (_HELD, Reach.ANSWERED, Act.WAIT, Act.RENEW, Act.RENEW, Act.RENEW),
            (_HELD, Reach.SLOW, Act.DOUBT, Act.DOUBT, Act.WAIT, Act.TAKE_DOWN),
            (_HELD, Reach.ABSENT, Act.CHALLENGE, Act.CHALLENGE, Act.WAIT, Act.TAKE_DOWN),
            (_HELD, Reach.SILENT, Act.WAIT, Act.WAIT, Act.WAIT, Act.TAKE_DOWN),
            (_HELD, Reach.UNKNOWN, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
            (_LAPSED, Reach.ANSWERED, Act.TAKE_UP, Act.TAKE_UP, Act.TAKE_UP, Act.TAKE_UP),
            (_LAPSED, Reach.SLOW, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
            (_LAPSED, Reach.ABSENT, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
            (_LAPSED, Reach.SILENT, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
            (_LAPSED, Reach.UNKNOWN, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
        )
    }
)


@dataclass(frozen=True)
class LeaseFile:
    """The file. `length_ms` is what the process that renewed it promises; `by` and `at_ms` are for people."""

    token: str = ""
    length_ms: int = 0
    by: str = ""
    at_ms: int = 0
    challenge: str = ""
    doubt: str = ""


@dataclass(frozen=True)
class LeaseMark:
    """A challenge or a doubt, as one process has seen it. `seen_ms`: since when it has seen this one; None: there is none."""

    token: str = ""
    seen_ms: float | None = None
    answered_ms: float | None = None  # when the last one was answered

    def seen(self, token: str, now_ms: float, *, first: bool) -> LeaseMark:
        known_ms = self.seen_ms if token == self.token and not first else None
        seen_ms = None if not token else now_ms if known_ms is None else known_ms
        answered = self.seen_ms is not None and not token
        return LeaseMark(token, seen_ms, now_ms if answered else self.answered_ms)

    def set_here(self, now_ms: float) -> LeaseMark:
        """Others may answer it before this process looks again."""
        return replace(self, token="set here", seen_ms=now_ms)

    def may_be_set(self, now_ms: float, pause_ms: float) -> bool:
        return not self.token and (self.answered_ms is None or now_ms - self.answered_ms >= pause_ms)


@dataclass(frozen=True)
class LeaseView:
    """What one process has seen of a lease. All times are of its monotonic clock, in ms. `length_ms` is the setting;
    `due_share` of it later than a third, drawn by each process, so that not all renew at once."""

    length_ms: float
    due_share: float = 0.0
    token: str = ""
    since_ms: float = 0.0
    promised_ms: float = 0.0
    challenge: LeaseMark = field(default_factory=LeaseMark)
    doubt: LeaseMark = field(default_factory=LeaseMark)
    looked_ms: float | None = None

    def seen(self, lease: LeaseFile, now_ms: float) -> LeaseView:
        """`now_ms` was read before the file was."""
        promised_ms = max(self.length_ms, float(lease.length_ms))
        first = self.looked_ms is None or now_ms - self.looked_ms > promised_ms / 2
        renewed = lease.token != self.token
        return replace(
            self,
            token=lease.token,
            since_ms=now_ms if first or renewed else self.since_ms,
            promised_ms=promised_ms,
            challenge=self.challenge.seen(lease.challenge, now_ms, first=first),
            doubt=self.doubt.seen(lease.doubt, now_ms, first=first),
            looked_ms=now_ms,
        )

    def phase(self, now_ms: float) -> Phase:
        age_ms = now_ms - self.since_ms
        if self.looked_ms is None:
            return Phase.FRESH
        if age_ms >= self.promised_ms:
            return Phase.OVER
        if self.challenge.seen_ms is not None:
            return Phase.OVER if now_ms - self.challenge.seen_ms >= CHALLENGE_MS else Phase.CHALLENGED
        due = self.doubt.seen_ms is not None or age_ms >= self.length_ms * (1 + self.due_share) / 3
        return Phase.DUE if due else Phase.FRESH

    def may(self, act: Act, now_ms: float) -> bool:
        """A mark that was answered is not set again before the length of the lease has passed."""
        mark = {Act.CHALLENGE: self.challenge, Act.DOUBT: self.doubt}.get(act)
        return mark is None or mark.may_be_set(now_ms, self.promised_ms)

    def marked(self, act: Act, now_ms: float) -> LeaseView:
        """This process has set the mark of `act`."""
        if act is Act.CHALLENGE:
            return replace(self, challenge=self.challenge.set_here(now_ms))
        return replace(self, doubt=self.doubt.set_here(now_ms))


@dataclass(frozen=True)
class Evidence:
    """All that one process knows of its way to the store. `late_ms`: since when one of its own deliveries has been late or has
    failed, and no good sample was taken."""

    contact: Contact
    samples: Samples = field(default_factory=Samples)
    late_ms: float | None = None

    def doubted_ms(self, view: LeaseView) -> float | None:
        """Since when an answer alone does not renew the lease."""
        known = [ms for ms in (self.late_ms, view.doubt.seen_ms) if ms is not None]
        return max(known) if known else None

    def promptness(self, view: LeaseView, now_ms: float, *, lapsed: bool) -> Promptness:
        """GOOD without a sample while none is needed."""
        since_ms = self.doubted_ms(view)
        if since_ms is None and not lapsed:
            return Promptness.GOOD
        return self.samples.promptness(now_ms, float("-inf") if since_ms is None else since_ms, lapsed=lapsed)

    def reach(self, view: LeaseView, now_ms: float, *, lapsed: bool) -> Reach:
        reach = self.contact.reach(now_ms, view.challenge.seen_ms)
        if reach is not Reach.ANSWERED:
            return reach
        return _REACH[self.promptness(view, now_ms, lapsed=lapsed)]

    def wants_sample(self, view: LeaseView, now_ms: float, *, lapsed: bool) -> bool:
        """Of a store that answers, until a sample is good."""
        needed = lapsed or self.doubted_ms(view) is not None
        if not needed or self.promptness(view, now_ms, lapsed=lapsed) is Promptness.GOOD:
            return False
        return self.samples.is_due(now_ms) and self.contact.reach(now_ms, None) is Reach.ANSWERED


_REACH: Mapping[Promptness, Reach] = MappingProxyType(
    {Promptness.GOOD: Reach.ANSWERED, Promptness.SLOW: Reach.SLOW, Promptness.UNKNOWN: Reach.UNKNOWN}
)


def decide(view: LeaseView, evidence: Evidence, now_ms: float, *, lapsed: bool) -> Act:
    """What a process does now. `lapsed`: of the newest term in the domain."""
    act = ACTS[lapsed, evidence.reach(view, now_ms, lapsed=lapsed)][view.phase(now_ms)]
    return act if view.may(act, now_ms) else Act.WAIT


# -- terms, and what was sent meanwhile --------------------------------------------------------------------------------
@dataclass(frozen=True)
class LeaseTerm:
    """A time during which a server's lease is held, or has lapsed. `lapsed_ms`: since when; None: it is held.

    Terms are counted for each server, from 1, and each follows another in the domain by a file that only one process can create
    (log/destinations/servers.py). A destination's table has the newest term that it knows. A table never goes back to an earlier
    term, so processes that commit terms late, twice or in the wrong order leave every table at the newest one.
    """

    number: int = 0
    lapsed_ms: int | None = None

    def next(self, lapsed_ms: int | None) -> LeaseTerm:
        return LeaseTerm(self.number + 1, lapsed_ms)

    def to_json(self) -> dict[str, Any]:
        return {"term": self.number, **({} if self.lapsed_ms is None else {"lapsedMs": self.lapsed_ms})}

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> LeaseTerm:
        """Raises KeyError, TypeError or ValueError."""
        lapsed = stored.get("lapsedMs")
        return LeaseTerm(int(stored["term"]), None if lapsed is None else int(lapsed))


HELD = LeaseTerm()  # of a server whose lease never lapsed


class Span(NamedTuple):
    """The messages of a member: the first that the table still has, and the last ever sent."""

    first: int
    last: int


@dataclass(frozen=True)
class Outages:
    """Which messages of a replicated distributed topic were sent while a server was down. `over`: server -> member -> messages sent
    while it was down. `begun`: server that is down -> member -> the first message since.

    Such a topic stores a message once, in one of its members, and each server has subscriptions with positions in all members.
    So a server that is down misses a part of each member:

        a commit ...                    for this server and each member
        ------------                    -------------------------------
        takes the server down           an outage begins behind the last message
        of a sender                     (it needs to note nothing)
        brings the server up            the outage ends with the last message; without messages it leaves nothing behind

    All three are commits to the log that numbers the messages, so on one version of the table each message is inside an outage or
    outside, and no clock matters. A member that is added while a server is down belongs to the outage as a whole.

    Once the server is up, its subscriptions get the persistent messages of an outage. They skip the others, which a JMS server
    would have kept in memory alone. With `storeEnabled: false` they skip them all.

    An outage whose messages have been removed from the table is forgotten with the next commit that takes a server down or up.
    """

    over: Mapping[str, Mapping[int, Ranges]] = field(default_factory=dict)
    begun: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def missed(self, server: str, member: int, last: int) -> Ranges:
        """Those up to `last` that were sent while the server was down."""
        found = self.over.get(server, {}).get(member, EMPTY).between(1, last)
        if server not in self.begun:
            return found
        return found | _messages(self.begun[server].get(member, 1), last)

    def following(self, down: Collection[str], servers: Collection[str], members: Mapping[int, Span]) -> Outages:
        """After a commit by which exactly `down` are down, of the servers that the topic is on; `members` are its members
        before that commit's messages."""
        begun = {server: self.begun.get(server) or _behind(members) for server in servers if server in down}
        over: dict[str, dict[int, Ranges]] = {}
        for server in servers:
            for member, span in members.items():
                missed = self.over.get(server, {}).get(member, EMPTY)
                if server in self.begun and server not in down:
                    missed |= _messages(self.begun[server].get(member, 1), span.last)
                if kept := missed.between(span.first, span.last):
                    over.setdefault(server, {})[member] = kept
        return Outages(over, begun)

    # -- stored form ----------------------------------------------------------------------------------------------
    def to_json(self) -> list[list[Any]]:
        """[server, member, first, last], with null for the last while the server is down."""
        over = [
            [server, member, first, last]
            for server, missed in self.over.items()
            for member, ranges in missed.items()
            for first, last in ranges
        ]
        begun = [
            [server, member, first, None] for server, firsts in self.begun.items() for member, first in firsts.items()
        ]
        return sorted(over + begun, key=lambda row: (row[0], row[1], row[2]))

    @staticmethod
    def from_json(stored: Iterable[Any]) -> Outages:
        """Raises ValueError or TypeError."""
        over: dict[str, dict[int, Ranges]] = {}
        begun: dict[str, dict[int, int]] = {}
        for server, member, first, last in stored:
            if last is None:
                begun.setdefault(str(server), {})[int(member)] = int(first)
            else:
                missed = over.setdefault(str(server), {})
                missed[int(member)] = missed.get(int(member), EMPTY) | Ranges.of((int(first), int(last)))
        return Outages(over, begun)


NO_OUTAGES = Outages()


def _messages(first: int, last: int) -> Ranges:
    return Ranges.of((first, last)) if first <= last else EMPTY


def _behind(members: Mapping[int, Span]) -> dict[int, int]:
    return {member: span.last + 1 for member, span in members.items()}
