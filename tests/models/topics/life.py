"""What one subscription must get, and what it has got: the account that the model keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import MemberPick

Key = tuple[int, int]  # member, sequence
Delivery = tuple[Key, bool]  # with whether it is flagged as redelivered


def deliveries(members: Mapping[int, MemberPick], withheld: Mapping[int, Ranges] | None = None) -> list[Delivery]:
    """The messages of a batch, without those that are withheld."""
    found: list[Delivery] = []
    for member, pick in members.items():
        flagged = {n for some in pick.redelivered.values() for n in some.numbers().tolist()}
        picks = pick.picks - withheld[member] if withheld and member in withheld else pick.picks
        found += [((member, n), n in flagged) for n in picks.numbers().tolist()]
    return found


@dataclass(frozen=True)
class SentMessage:
    """`down`: the servers that were down when it was committed."""

    key: Key
    persistent: bool
    down: frozenset[str]


@dataclass
class Life:
    """A subscription from its beginning to its end. `server`: of a replicated topic. `keeps`: whether a server that is down
    keeps persistent messages for later. `users`: its consumers, of one that is not durable."""

    name: str
    server: str | None
    keeps: bool
    begin: int  # how many messages were sent before
    users: set[str] = field(default_factory=set)
    got: list[Delivery] = field(default_factory=list)

    def expected(self, sent: Sequence[SentMessage]) -> set[Key]:
        return {message.key for message in sent[self.begin :]} - self.skipped(sent)

    def skipped(self, sent: Sequence[SentMessage]) -> set[Key]:
        """What it misses because its server was down."""
        missed = (message for message in sent[self.begin :] if self.server in message.down)
        return {message.key for message in missed if not (message.persistent and self.keeps)}

    def check(self, sent: Sequence[SentMessage]) -> None:
        """At any moment: nothing from nowhere, nothing that was to be skipped, nothing twice that was not flagged."""
        keys = {key for key, _ in self.got}
        assert not keys & self.skipped(sent), f"{self.name} got what its server has missed"
        assert keys <= self.expected(sent), f"{self.name} got what was sent before it began"
        first = Counter(key for key, flagged in self.got if not flagged)
        assert all(count == 1 for count in first.values()), f"{self.name} got a message twice, and not flagged"

    def is_drained(self, sent: Sequence[SentMessage]) -> bool:
        return {key for key, _ in self.got} >= self.expected(sent)

    def check_drained(self, sent: Sequence[SentMessage]) -> None:
        """At the end: sent = received + skipped."""
        self.check(sent)
        assert self.is_drained(sent), f"{self.name} has lost {self.expected(sent) - {key for key, _ in self.got}}"
