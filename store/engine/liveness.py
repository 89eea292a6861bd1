"""Which sessions are alive, as the engine sees it. Thread-safe; reads no clock: `now_ms` is an argument.

    state     event                                         next
    ALIVE     a heartbeat of its client                     ALIVE    until now + session_timeout_ms
    ALIVE     no heartbeat for session_timeout_ms           DEAD     until a heartbeat comes, unless another client ended it
    ALIVE     all connections of its client have closed     LEAVING  dead at now + grace_ms
    LEAVING   its client is back                            ALIVE
    any       its process is known to have ended            DEAD

The engine can look up a process of its own host, so the records of a killed process are free at once. A session that
a new engine finds in the ledger is ALIVE for session_timeout_ms, so that its client can come back. The engine calls `tick`
several times a second: a longer silence means that the engine itself was stopped.

Features: R8 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

LONGEST_OWN_SILENCE_MS = 1_000.0


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
        self._lock = threading.Lock()
        self._alive_until_ms: dict[str, float] = {}
        self._clients: dict[str, _Client] = {}
        self._ticked_ms: float | None = None

    def expect(self, session_ids: Iterable[str], now_ms: float) -> None:
        """Sessions of the engine before this one; their clients have the whole timeout to come back."""
        with self._lock:
            self._tick(now_ms)
            for session_id in session_ids:
                self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def connected(self, client_id: str, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)
            self._clients.setdefault(client_id, _Client()).connection_count += 1

    def disconnected(self, client_id: str, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)
            client = self._clients[client_id]
            client.connection_count -= 1
            if client.connection_count == 0:
                del self._clients[client_id]
                for session_id in client.session_ids & self._alive_until_ms.keys():
                    until_ms = min(self._alive_until_ms[session_id], now_ms + self._grace_ms)
                    self._alive_until_ms[session_id] = until_ms

    def beat(self, client_id: str, session_ids: Collection[str], now_ms: float) -> None:
        """A heartbeat names all sessions of its client; the client has no others."""
        with self._lock:
            self._tick(now_ms)
            client = self._clients.get(client_id)
            if client is None:  # it hung up while the heartbeat was on its way
                return
            for session_id in client.session_ids - set(session_ids):
                self._alive_until_ms.pop(session_id, None)
            client.session_ids = set(session_ids)
            for session_id in session_ids:
                self._alive_until_ms[session_id] = now_ms + self._timeout_ms

    def alive(self, session_ids: Collection[str], now_ms: float) -> frozenset[str]:
        with self._lock:
            self._tick(now_ms)
            for session_id in session_ids:
                if session_id in self._alive_until_ms and self._process_gone(session_id):
                    del self._alive_until_ms[session_id]
            return frozenset(s for s in session_ids if self._alive_until_ms.get(s, 0.0) > now_ms)

    def tick(self, now_ms: float) -> None:
        with self._lock:
            self._tick(now_ms)

    def _tick(self, now_ms: float) -> None:
        """While the engine was stopped, heartbeats arrived that it could not read: sessions must not die of that time."""
        silence_ms = now_ms - self._ticked_ms if self._ticked_ms is not None else 0.0
        self._ticked_ms = now_ms
        if silence_ms > LONGEST_OWN_SILENCE_MS:
            for session_id in self._alive_until_ms:
                self._alive_until_ms[session_id] += silence_ms

    def forget(self, session_ids: Iterable[str]) -> None:
        with self._lock:
            for session_id in session_ids:
                self._alive_until_ms.pop(session_id, None)

    @property
    def client_count(self) -> int:
        return len(self._clients)
