"""Which sessions are alive, as the engine sees it. Pure: `now_ms` is an argument.

    state     event                                    next
    ALIVE     a beat of its client                     ALIVE    until now + session_timeout_ms
    ALIVE     no beat for session_timeout_ms           DEAD     until a beat comes, unless somebody ended it meanwhile
    ALIVE     all connections of its client are gone   LEAVING  dead at now + grace_ms
    LEAVING   its client is back                       ALIVE
    any       its process is known to be gone          DEAD

A process of the same host is known to be gone by looking; so what a killed process held is free at once (R8). A session
that a new engine finds in the ledger is ALIVE for session_timeout_ms, in which its client is to come back. `tick` is to
be called several times a second: a longer silence means that the engine itself was stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

LONGEST_SILENCE_OF_OURS_MS = 1_000.0


@dataclass
class _Client:
    connection_count: int = 0
    session_ids: set[str] = field(default_factory=set)


class Liveness:
    def __init__(
        self, session_timeout_ms: float, grace_ms: float, process_gone: Callable[[str], bool] = lambda _: False
    ) -> None:
        self._timeout_ms = session_timeout_ms
        self._grace_ms = grace_ms
        self._process_gone = process_gone
        self._alive_until_ms: dict[str, float] = {}
        self._clients: dict[str, _Client] = {}
        self._looked_ms: float | None = None

    def expect(self, session_ids: Iterable[str], now_ms: float) -> None:
        """Sessions of the engine before; their clients have the whole time-out to come back."""
        self._look(now_ms)
        for session_id in session_ids:
            self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def connected(self, client_id: str, now_ms: float) -> None:
        self._look(now_ms)
        self._clients.setdefault(client_id, _Client()).connection_count += 1

    def disconnected(self, client_id: str, now_ms: float) -> None:
        self._look(now_ms)
        client = self._clients[client_id]
        client.connection_count -= 1
        if client.connection_count == 0:
            del self._clients[client_id]
            for session_id in client.session_ids & self._alive_until_ms.keys():
                until_ms = min(self._alive_until_ms[session_id], now_ms + self._grace_ms)
                self._alive_until_ms[session_id] = until_ms

    def beat(self, client_id: str, session_ids: Collection[str], now_ms: float) -> None:
        """The client says which sessions it has: these, and no others."""
        self._look(now_ms)
        client = self._clients.get(client_id)
        if client is None:  # it hung up while this was on its way
            return
        for session_id in client.session_ids - set(session_ids):
            self._alive_until_ms.pop(session_id, None)
        client.session_ids = set(session_ids)
        for session_id in session_ids:
            self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def alive(self, session_ids: Collection[str], now_ms: float) -> frozenset[str]:
        self._look(now_ms)
        return frozenset(s for s in session_ids if self._alive_until_ms.get(s, 0.0) > now_ms and not self._gone(s))

    def _gone(self, session_id: str) -> bool:
        gone = self._process_gone(session_id)
        if gone:
            del self._alive_until_ms[session_id]
        return gone

    def tick(self, now_ms: float) -> None:
        self._look(now_ms)

    def _look(self, now_ms: float) -> None:
        """When it was we who were stopped, the beats of that time lie unread: it must not count against others."""
        silence_ms = now_ms - self._looked_ms if self._looked_ms is not None else 0.0
        self._looked_ms = now_ms
        if silence_ms > LONGEST_SILENCE_OF_OURS_MS:
            for session_id in self._alive_until_ms:
                self._alive_until_ms[session_id] += silence_ms

    def forget(self, session_ids: Iterable[str]) -> None:
        for session_id in session_ids:
            self._alive_until_ms.pop(session_id, None)

    @property
    def client_count(self) -> int:
        return len(self._clients)
