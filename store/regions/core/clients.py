"""The clients of one daemon, and which of them fell silent (a leaf of the daemon core). Pure."""

from __future__ import annotations

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.actions import Drop
from spark_jms.store.regions.core.clock import DaemonClock
from spark_jms.store.regions.core.outgoing import Outgoing


class Clients:
    def __init__(self, settings: DaemonSettings, clock: DaemonClock, out: Outgoing) -> None:
        self._settings = settings
        self._clock = clock
        self._out = out
        self._heard_ms: dict[int, float] = {}

    def came(self, client: int, name: str) -> None:
        self._out.clients[client] = name
        self._heard_ms[client] = self._clock.now_ms

    def left(self, client: int) -> bool:
        """False when it had left before."""
        self._heard_ms.pop(client, None)
        return self._out.clients.pop(client, None) is not None

    def heard(self, client: int) -> bool:
        """False when it has left."""
        known = client in self._heard_ms
        if known:
            self._heard_ms[client] = self._clock.now_ms
        return known

    def stood_still(self) -> None:
        """This process stood still: the silence of the clients is its own."""
        self._heard_ms = dict.fromkeys(self._heard_ms, self._clock.now_ms)

    def detect(self) -> None:
        """Drops the clients that fell silent."""
        now_ms = self._clock.now_ms
        for client, heard_ms in self._heard_ms.items():
            if now_ms - heard_ms > self._settings.client_timeout_ms:
                self._out.log(1, f"client {self._out.clients.get(client)} does not answer")
                self._out.add(Drop(client))
                self._heard_ms[client] = now_ms
