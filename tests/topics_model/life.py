"""What one subscription must get, and what it has got: the account that the model keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

Key = tuple[int, int]  # member, sequence


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
    got: list[tuple[Key, bool]] = field(default_factory=list)  # with whether it was flagged

    def expected(self, sent: Sequence[SentMessage]) -> set[Key]:
        return {message.key for message in sent[self.begin :]} - self.skipped(sent)

    def skipped(self, sent: Sequence[SentMessage]) -> set[Key]:
        """What it misses because its server was down."""
        missed = (message for message in sent[self.begin :] if self.server in message.down)
        return {message.key for message in missed if not (message.persistent and self.keeps)}

    def receive(self, keys: Iterable[Key], flagged: Collection[Key]) -> None:
        self.got += [(key, key in flagged) for key in keys]

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
