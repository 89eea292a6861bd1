"""The heartbeats that this daemon sends: what the others need for placement, and for `lsd` (R10). Pure."""

from __future__ import annotations

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
            for index in self._shared.peers.by_index:
                self.send(index)

    def send(self, index: int) -> None:
        if index in self._shared.out.daemons:
            self._shared.out.to_peer(index, self.to(index))

    def soon(self) -> None:
        """The next tick sends one."""
        self._sent_ms = -1e9

    def to(self, index: int) -> DaemonHeartbeat:
        """The heartbeat as daemon `index` gets it. While in doubt about one of its regions, its clock is not echoed."""
        shared, peer = self._shared, self._shared.peers.by_index.get(index)
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
            echo_ms=peer.their_ms if peer and not shared.directory.doubts(index) else -1.0,
        )
