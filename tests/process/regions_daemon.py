"""A daemon that drops all its connections on SIGUSR2. python -m tests.process.regions_daemon"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from spark_jms.store.regions.daemon import daemon
from spark_jms.store.regions.daemon.__main__ import main


class CutDaemon(daemon.Daemon):
    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._cut)
        await super().run()

    def _cut(self) -> None:
        for connection in (*self._peers.values(), *self._clients.values()):
            connection.abort()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    daemon.Daemon = CutDaemon  # type: ignore[misc]
    sys.exit(main())
