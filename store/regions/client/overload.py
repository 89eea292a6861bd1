"""How full the daemon of a store is, and what the store refuses for that reason (R13)."""

from __future__ import annotations

import logging

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import ProtocolError
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, Attachment
from spark_jms.store.regions.client.thresholds import SpaceLog, check_new_message, exceeds_yellow, refuses_open
from spark_jms.store.regions.core.instance import InstanceCore
from spark_jms.store.regions.core.protocol import Daemons

log = logging.getLogger("store.replicated")


class Overload:
    """The daemon's memory as it was last observed, beside the space of the store (`placement`)."""

    def __init__(self, thresholds: Thresholds, store: str, placement: InstanceCore, attachment: Attachment) -> None:
        self._thresholds = thresholds
        self._placement = placement
        self._attachment = attachment
        self._space_log = SpaceLog(thresholds, store)
        self.daemon_used = self.daemon_limit = 0

    async def observe(self) -> None:
        """Asks the daemon. Logs when a threshold was crossed."""
        index = self._attachment.index
        rows = await self._attachment.ask(Daemons, DAEMON_ROWS)
        row = rows[index] if index < len(rows) else None
        if row is None:
            raise ProtocolError(f"daemon {index} reports nothing of itself")
        self.daemon_used, self.daemon_limit = row.used_bytes, row.limit_bytes
        line = self._space_log.observe(row.used_bytes, row.limit_bytes)
        if line is not None:
            log.log(int(line.level), "%s", line.text)

    def refuses_open(self) -> bool:
        return refuses_open(self._thresholds, self.daemon_used, self.daemon_limit)

    async def check(self) -> None:
        """ResourceAllocationException while this daemon and this store are both above yellow. The store knows its own use;
        only when that is above, it asks the daemon, so that the answer is of now."""
        placement = self._placement
        if not exceeds_yellow(self._thresholds, placement.used_bytes, placement.size_bytes):
            return
        await self.observe()
        check_new_message(
            self._thresholds, self.daemon_used, self.daemon_limit, placement.used_bytes, placement.size_bytes
        )
