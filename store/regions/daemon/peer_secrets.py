"""The secrets of the other daemons (R17), kept once they were read: two daemons connect again while the directory is away."""

from __future__ import annotations

from spark_jms.store.errors import DaemonUnavailableError, DirectoryUnavailableError
from spark_jms.store.regions.global_directory import GlobalDirectory


class PeerSecrets:
    """`identity` is that of the directory: without seeing it, no daemon is taken for ended."""

    def __init__(self, directory: GlobalDirectory, identity: str) -> None:
        self._directory = directory
        self._identity = identity
        self._known: dict[int, bytes] = {}  # by daemon

    def of(self, index: int) -> bytes | None:
        """None when that daemon certainly does not run. While the directory is away: the secret that was read last, which a
        restart of that daemon makes useless. DirectoryUnavailableError or DaemonUnavailableError when none was read."""
        try:
            if not self._directory.is_running(index, identity=self._identity):
                return None
            self._known[index] = self._directory.secret(index)
        except (DirectoryUnavailableError, DaemonUnavailableError):
            if index not in self._known:
                raise
        return self._known[index]
