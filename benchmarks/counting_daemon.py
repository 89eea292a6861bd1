"""A daemon that counts what it sends to its peers and its calls on files. python -m benchmarks.counting_daemon COUNTS -dir PATH ...

It writes its counts to the file COUNTS on SIGUSR1: `peer_frames`, `heartbeats`, `peer_bytes`, `file_calls` since its start.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import ClassVar

from spark_jms.store.regions.core.actions import Action, ToPeer
from spark_jms.store.regions.daemon import daemon
from spark_jms.store.regions.directory.global_directory import write_whole
from spark_jms.store.regions.protocol.messages import DaemonHeartbeat, encode

FILE_EVENTS = frozenset({"open", "os.listdir", "os.scandir", "os.link", "os.rename", "os.remove", "os.mkdir"})
ELSEWHERE = ("/proc", "/sys", "/dev", sys.prefix, sys.base_prefix)


class CountingDaemon(daemon.Daemon):
    counts: ClassVar[Counter[str]] = Counter()
    counts_file: ClassVar[Path]

    async def run(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._write)
        await super().run()

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, ToPeer):
                self.counts["peer_frames"] += 1
                self.counts["heartbeats"] += isinstance(action.message, DaemonHeartbeat)
                self.counts["peer_bytes"] += len(encode(0, action.message))
        super()._perform(actions)

    def _write(self) -> None:
        write_whole(self.counts_file, json.dumps(self.counts).encode(), 0o600)


def audit(event: str, arguments: tuple[object, ...]) -> None:
    if event in FILE_EVENTS and not str(arguments[0] if arguments else "").startswith(ELSEWHERE):
        CountingDaemon.counts["file_calls"] += 1


if __name__ == "__main__":
    CountingDaemon.counts_file = Path(sys.argv[1])
    sys.addaudithook(audit)
    daemon.Daemon = CountingDaemon  # type: ignore[misc]
    os.environ.setdefault("RS_LOCK_MEMORY", "false")
    sys.exit(daemon.main(sys.argv[2:]))
