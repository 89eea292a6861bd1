"""How full the daemon of a store is, and what the store refuses for that reason.

Features: R13 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import ProtocolError, ResourceAllocationException
from spark_jms.store.regions.client.attachment import DAEMON_ROWS, Attachment
from spark_jms.store.regions.client.thresholds import SpaceLog, check_new_message, exceeds_yellow, refuses_open
from spark_jms.store.regions.core.instance import InstanceCore
from spark_jms.store.regions.core.protocol import Daemons
from spark_jms.store.regions.published_overload import PublishedOverload

log = logging.getLogger("store.replicated")


class Overload:
    """The daemon's memory as it was last observed, beside the space of the store (`placement`). What a service of the store
    takes only until its next snapshot (`reclaimable`) does not count: nothing but more writes would bring that snapshot, and
    they would be refused."""

    def __init__(
        self,
        thresholds: Thresholds,
        store: str,
        placement: InstanceCore,
        attachment: Attachment,
        published: PublishedOverload,
    ) -> None:
        self._thresholds = thresholds
        self._placement = placement
        self._attachment = attachment
        self._space_log = SpaceLog(thresholds, store)
        self._published = published
        self._told = False  # senders: that they are refused
        self._telling: asyncio.Task[None] | None = None
        self.daemon_used = self.daemon_limit = 0
        self.reclaimable: Callable[[], int] = lambda: 0

    def _usage(self) -> tuple[int, int]:
        """The bytes that the store uses, and those of its regions."""
        return max(0, self._placement.used_bytes - self.reclaimable()), self._placement.size_bytes

    @property
    def is_near(self) -> bool:
        """The daemon's use decides whether new messages are refused."""
        return self._told or exceeds_yellow(self._thresholds, *self._usage())

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
        self._tell_senders()

    def _tell_senders(self) -> None:
        """Off the loop, when it has changed: the directory may hang, and a failure is repeated at the next look."""
        try:
            self._judge()
            reason = ""
        except ResourceAllocationException as error:
            reason = error.detail()
        if bool(reason) != self._told and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell(reason))

    async def _tell(self, reason: str) -> None:
        try:
            await asyncio.to_thread(self._published.put, reason)
            self._told = bool(reason)
        except OSError as error:
            log.error("senders cannot be told whether the store accepts messages: %s", error)

    def _judge(self) -> None:
        check_new_message(self._thresholds, self.daemon_used, self.daemon_limit, *self._usage())

    def refuses_open(self) -> bool:
        return refuses_open(self._thresholds, self.daemon_used, self.daemon_limit)

    async def check(self) -> None:
        """ResourceAllocationException while this daemon and this store are both above yellow. The store knows its own use;
        only when that is above, it asks the daemon, so that the answer is of now."""
        if self.is_near:
            await self.observe()
            self._judge()
