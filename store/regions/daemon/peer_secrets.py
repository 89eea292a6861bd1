"""The secrets of the other daemons, kept once they were read: two daemons connect again while the directory is away or
hangs.

Features: R17 (docs/FEATURES.md)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from spark_jms.store.errors import DaemonUnavailableError, DirectoryUnavailableError
from spark_jms.store.regions.global_directory import GlobalDirectory

Run = Callable[[Callable[[], bytes | None]], "asyncio.Future[bytes | None]"]  # off the loop, see DirectoryWorkers.run
PATIENCE_S = 0.2


class PeerSecrets:
    """`identity` is that of the directory: without seeing it, no daemon is taken for ended."""

    def __init__(self, directory: GlobalDirectory, identity: str, run: Run) -> None:
        self._directory = directory
        self._identity = identity
        self._run = run
        self._known: dict[int, bytes] = {}  # by daemon
        self._asked: dict[int, asyncio.Future[bytes | None]] = {}  # one question a daemon, however long it takes

    async def of(self, index: int) -> bytes | None:
        """None when that daemon certainly does not run. While the directory is away or does not answer: the secret that was
        read last, which a restart of that daemon makes useless. DirectoryUnavailableError or DaemonUnavailableError when none
        was read."""
        asked = self._asked.get(index) or self._run(lambda: self._read(index))
        self._asked[index] = asked
        if index in self._known:
            await asyncio.wait({asked}, timeout=PATIENCE_S)
            if not asked.done():
                return self._known[index]
        try:
            secret = await asyncio.shield(asked)
        except (DirectoryUnavailableError, DaemonUnavailableError):
            if index not in self._known:
                raise
            return self._known[index]
        finally:
            if asked.done():
                self._asked.pop(index, None)
        if secret is not None:
            self._known[index] = secret
        return secret

    def _read(self, index: int) -> bytes | None:
        return self._directory.secret(index) if self._directory.is_running(index, identity=self._identity) else None
