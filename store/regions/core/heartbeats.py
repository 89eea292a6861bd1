"""The heartbeats that this daemon sends: what the others need for placement, and for `lsd`. Pure.

Features: R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from msgspec.structs import replace

from spark_jms.store.regions.core.primaries import Primaries
from spark_jms.store.regions.core.protocol import DaemonHeartbeat
from spark_jms.store.regions.core.shared import Shared


class Heartbeats:
    def __init__(self, shared: Shared, primaries: Primaries) -> None:
        self._shared = shared
        self._primaries = primaries
        self._started_us = shared.clock.now_us
        self._sent_ms = -1e9

    def tick(self) -> None:
        if self._shared.clock.now_ms - self._sent_ms >= self._shared.settings.heartbeat_ms:
            self._sent_ms = self._shared.clock.now_ms
            mine = self.mine()
            for index in self._shared.peers.by_index:
                self._send(index, mine)

    def send(self, index: int) -> None:
        self._send(index, self.mine())

    def _send(self, index: int, mine: DaemonHeartbeat) -> None:
        """While this daemon is in doubt about a region of daemon `index`, that daemon's clock is not echoed."""
        shared = self._shared
        if index in shared.out.daemons:
            echo_ms = -1.0 if shared.directory.doubts(index) else shared.peers.by_index[index].their_ms
            shared.out.to_peer(index, replace(mine, echo_ms=echo_ms))

    def soon(self) -> None:
        """The next tick sends one."""
        self._sent_ms = -1e9

    def mine(self) -> DaemonHeartbeat:
        """The heartbeat, before a clock is echoed in it."""
        shared = self._shared
        entries = (shared.directory.seen.get(name) for name in shared.copies.followed)
        opened, replicas_open = self._primaries.opened, sum(e is not None and e.opener is not None for e in entries)
        return DaemonHeartbeat(
            used_bytes=shared.copies.used_bytes,
            limit_bytes=shared.copies.limit_bytes,
            draining=shared.peers.draining,
            started_us=self._started_us,
            now_us=shared.clock.now_us,
            regions_closed=len(shared.copies) - opened - replicas_open,
            regions_open_primary=opened,
            regions_open_replica=replicas_open,
            resilvers=self._primaries.resilvers,
            clock_ms=shared.clock.now_ms,
            echo_ms=-1.0,
            waits_for=shared.peers.waits_for,
        )
