"""How full the daemon of a store is, and what the store refuses for that reason (R13)."""

from __future__ import annotations

import logging

from spark_jms.settings.store import Thresholds
from spark_jms.store.regions.client.thresholds import SpaceLog, check_new_message, refuses_open
from spark_jms.store.regions.core.instance import InstanceCore

log = logging.getLogger("store.replicated")


class Overload:
    """The daemon's memory as it was last observed, beside the space of the store (`placement`)."""

    def __init__(self, thresholds: Thresholds, store: str, placement: InstanceCore) -> None:
        self._thresholds = thresholds
        self._placement = placement
        self._space_log = SpaceLog(thresholds, store)
        self.daemon_used = self.daemon_limit = 0

    def observe(self, used_bytes: int, limit_bytes: int) -> None:
        """Logs when a threshold was crossed."""
        self.daemon_used, self.daemon_limit = used_bytes, limit_bytes
        line = self._space_log.observe(used_bytes, limit_bytes)
        if line is not None:
            log.log(int(line.level), "%s", line.text)

    def refuses_open(self) -> bool:
        return refuses_open(self._thresholds, self.daemon_used, self.daemon_limit)

    def check(self) -> None:
        """ResourceAllocationException while this daemon and this store are both above yellow."""
        placement = self._placement
        check_new_message(
            self._thresholds, self.daemon_used, self.daemon_limit, placement.used_bytes, placement.size_bytes
        )
