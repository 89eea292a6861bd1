"""A daemon that drops all its connections on SIGUSR2. While the file that SLOW_DIRECTORY names exists, its calls to the
Global Directory take as many milliseconds as the file says, or until the file is removed if it is empty.

python -m tests.harness.stores.regions_daemon"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from spark_jms.store.kinds.daemon import main
from spark_jms.store.regions.daemon import daemon
from spark_jms.store.regions.directory.entries import DirectoryFiles
from spark_jms.store.regions.directory.global_directory import GlobalDirectory

SLOW_DIRECTORY = "TEST_SLOW_DIRECTORY"
POLL_S = 0.02


class CutDaemon(daemon.Daemon):
    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, self._cut)
        await super().run()

    def _cut(self) -> None:
        for connection in (*self._peers.values(), *self._clients.values()):
            connection.abort()


def slow_down(kind: type, methods: tuple[str, ...], switch: Path) -> None:
    for name in methods:
        setattr(kind, name, slowed(getattr(kind, name), switch))


def slowed(method: Any, switch: Path) -> Any:
    def call(*arguments: Any, **named: Any) -> Any:
        wait(switch)
        return method(*arguments, **named)

    return call


def wait(switch: Path) -> None:
    while True:
        try:
            text = switch.read_text()
        except FileNotFoundError:
            return
        if text:
            time.sleep(float(text) / 1000.0)
            return
        time.sleep(POLL_S)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONFAULTHANDLER", "1")
    daemon.Daemon = CutDaemon  # type: ignore[misc]
    if SLOW_DIRECTORY in os.environ:
        switch = Path(os.environ[SLOW_DIRECTORY])
        slow_down(DirectoryFiles, ("read", "entries", "swap", "discard", "running", "remove_stale_files"), switch)
        slow_down(GlobalDirectory, ("is_running", "secret"), switch)
    sys.exit(main())
