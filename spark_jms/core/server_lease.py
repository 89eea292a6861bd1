"""When a server counts as away, and what each process does about it. Pure.

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

A store may also answer, but too late for its users: they wait a limited time for a delivery. So where a delivery was late or failed,
its process takes *samples* (core/delivery_sample.py), and its answers renew the lease only with a good one. Others may have other
ways to the store, so it asks them by a *doubt*, a second mark in the lease's file: from then on no process renews without a good
sample that it began after it saw the mark; one that has it removes the mark. Nor does a lapse end without a good sample, whose
limit is lower. While no delivery fails and no lease has lapsed, no samples are taken.

What can go wrong, and what it costs: processes with answers may all be slow when the lease ends, or stand still. Then a server
is down although its store answers; senders avoid it until the first process with an answer ends that term, within a second.
Nothing is lost by it, and no message comes twice: which messages are whose is in the store alone. A process that stood still
itself, for half of the length, begins to measure again, because the others may have stood still with it.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

from spark_jms.core.delivery_sample import Promptness, Samples

CHALLENGE_MS = 900.0
LOOK_MS = 400.0  # at least so often a process looks at the lease's file, and asks the store
ANSWER_MS = 1_100.0  # a question without an answer for so long counts as failed
SUSPICION_MS = 150.0  # after so long without an answer, a look at the store's address may tell more
# So long after its question an answer proves that the store is reached. At least one look meets each answer that came in time; and
# a store that hangs is down within its lease and 2 s, because no renewal rests on an older answer.
PROOF_MS = ANSWER_MS + LOOK_MS + 100.0


class Reach(Enum):
    """What a process knows of its own way to the store."""

    ANSWERED = "it has an answer of the store"
    SLOW = "it has answers, too late for its users"
    ABSENT = "there is no store at its address"
    SILENT = "it has no answer"
    UNKNOWN = "it has just asked"


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
