"""When a server counts as away, and what each process does about it. Pure.

A server is a store; it has no process of its own. So the processes that use the store keep the server's lease: a small file in
the domain with a token, which they replace while the store answers them. Each process decides by what it sees itself:

    a process ...                       the lease is ...    and it ...
    -------------                       ----------------    ----------
    has an answer of the store          fresh               waits
                                        due, or challenged  renews it
                                        of a lapsed term    renews it, and begins a term in which it is held
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

What can go wrong, and what it costs: processes with answers may all be slow when the lease ends, or stand still. Then a server
is down although its store answers; senders avoid it until the first process with an answer ends that term, within a second.
Nothing is lost by it, and no message comes twice: which messages are whose is in the store alone. A process that stood still
itself, for half of the length, begins to measure again, because the others may have stood still with it.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType

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
    TAKE_DOWN = "begin a term in which it has lapsed"
    TAKE_UP = "renew the lease, and begin a term in which it is held"


_HELD, _LAPSED = False, True
ACTS: Mapping[tuple[bool, Reach], Mapping[Phase, Act]] = MappingProxyType(
    {
        (lapsed, reach): dict(zip(Phase, acts, strict=True))
        for lapsed, reach, *acts in (
            #                         fresh          due            challenged    over
            (_HELD, Reach.ANSWERED, Act.WAIT, Act.RENEW, Act.RENEW, Act.RENEW),
            (_HELD, Reach.ABSENT, Act.CHALLENGE, Act.CHALLENGE, Act.WAIT, Act.TAKE_DOWN),
            (_HELD, Reach.SILENT, Act.WAIT, Act.WAIT, Act.WAIT, Act.TAKE_DOWN),
            (_HELD, Reach.UNKNOWN, Act.WAIT, Act.WAIT, Act.WAIT, Act.WAIT),
            (_LAPSED, Reach.ANSWERED, Act.TAKE_UP, Act.TAKE_UP, Act.TAKE_UP, Act.TAKE_UP),
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


@dataclass(frozen=True)
class LeaseView:
    """What one process has seen of a lease. All times are of its monotonic clock, in ms. `length_ms` is the setting;
    `due_share` of it later than a third, drawn by each process, so that not all renew at once."""

    length_ms: float
    due_share: float = 0.0
    token: str = ""
    since_ms: float = 0.0
    promised_ms: float = 0.0
    challenge: str = ""
    challenged_ms: float | None = None
    answered_ms: float | None = None  # when the last challenge was answered
    looked_ms: float | None = None

    def seen(self, lease: LeaseFile, now_ms: float) -> LeaseView:
        """`now_ms` was read before the file was."""
        promised_ms = max(self.length_ms, float(lease.length_ms))
        first = self.looked_ms is None or now_ms - self.looked_ms > promised_ms / 2
        renewed = lease.token != self.token
        since_ms = now_ms if first or renewed else self.since_ms
        challenged_ms = None
        if lease.challenge:
            known = self.challenged_ms if lease.challenge == self.challenge and not first else None
            challenged_ms = now_ms if known is None else known
        answered = self.challenged_ms is not None and not lease.challenge
        return replace(
            self,
            token=lease.token,
            since_ms=since_ms,
            promised_ms=promised_ms,
            challenge=lease.challenge,
            challenged_ms=challenged_ms,
            answered_ms=now_ms if answered else self.answered_ms,
            looked_ms=now_ms,
        )

    def phase(self, now_ms: float) -> Phase:
        age_ms = now_ms - self.since_ms
        if self.looked_ms is None:
            return Phase.FRESH
        if age_ms >= self.promised_ms:
            return Phase.OVER
        if self.challenged_ms is not None:
            return Phase.OVER if now_ms - self.challenged_ms >= CHALLENGE_MS else Phase.CHALLENGED
        return Phase.DUE if age_ms >= self.length_ms * (1 + self.due_share) / 3 else Phase.FRESH

    def may_challenge(self, now_ms: float) -> bool:
        return self.answered_ms is None or now_ms - self.answered_ms >= self.promised_ms


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


def decide(view: LeaseView, contact: Contact, now_ms: float, *, lapsed: bool) -> Act:
    """What a process does now. `lapsed`: of the newest term in the domain."""
    act = ACTS[lapsed, contact.reach(now_ms, view.challenged_ms)][view.phase(now_ms)]
    return Act.WAIT if act is Act.CHALLENGE and not view.may_challenge(now_ms) else act
