"""The files of the servers' leases: core/server_lease.py has the theory.

ROOT/_jmsq/leases/<server>      the token of the last renewal, and the marks of a challenge and of a doubt

A process replaces the whole file. Of two that do so at once the later one counts: a renewal that is lost is made again, because
the mark is still there, and a mark that is lost was answered.

Features: D4 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, fields, replace

from spark_jms.core.server_lease import LeaseFile
from spark_jms.errors import FormatVersionError
from spark_jms.log.storage import Storage

LEASES = "_jmsq/leases"
FORMAT_VERSION = 1
_KINDS = {field.name: type(field.default) for field in fields(LeaseFile)}


class ServerLeases:
    """Thread-safe: every call reads or writes the storage. `by` names this process for people."""

    def __init__(self, storage: Storage, by: str = "") -> None:
        self._storage, self._by = storage, by

    def read(self, server: str) -> LeaseFile:
        """A file that is missing or damaged is like one that was never renewed: the next renewal replaces it. Raises
        FormatVersionError for one of a later spark-jms, whose processes keep the lease: this one leaves it to them."""
        data = self._storage.get(f"{LEASES}/{server}")
        if data is None:
            return LeaseFile()
        try:
            value = json.loads(data)
            later = value.get("v", 1) > FORMAT_VERSION
            lease = LeaseFile(**{key: value[key] for key in value.keys() & _KINDS.keys()})
        except (ValueError, TypeError, AttributeError, RecursionError):
            return LeaseFile()
        if any(type(getattr(lease, key)) is not kind for key, kind in _KINDS.items()):
            return LeaseFile()
        if later:
            raise FormatVersionError(
                f"{self._storage.uri}/{LEASES}/{server} has format version {value['v']}, this spark-jms reads up to "
                f"{FORMAT_VERSION}: install a later spark-jms. This process does not take part in keeping the lease"
            )
        return lease

    def renew(self, server: str, length_ms: int, at_ms: int) -> None:
        self._write(server, LeaseFile(secrets.token_hex(8), length_ms, self._by, at_ms))

    def challenge(self, server: str) -> None:
        """Leaves a mark that is there."""
        lease = self.read(server)
        if not lease.challenge:
            self._write(server, replace(lease, challenge=secrets.token_hex(8)))

    def doubt(self, server: str) -> None:
        """The same."""
        lease = self.read(server)
        if not lease.doubt:
            self._write(server, replace(lease, doubt=secrets.token_hex(8)))

    def _write(self, server: str, lease: LeaseFile) -> None:
        self._storage.put(f"{LEASES}/{server}", json.dumps({"v": FORMAT_VERSION, **asdict(lease)}).encode())
