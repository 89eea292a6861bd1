"""Which boot of each host has written to a domain last.

ROOT/_jmsq/boots/<host>         the id of the boot
ROOT/_jmsq/boots/.<host>.lock   held by the process that repairs the domain after a new boot

Only a domain in a directory has them, and only hosts that tell their boot's id (Linux): a host that was booted again may have lost
what it had not forced to the disk. A container needs a host name that survives the boot.

Features: C5 (docs/FEATURES.md)
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from spark_jms.errors import DomainError
from spark_jms.log.local_storage import LocalStorage

BOOTS = "_jmsq/boots"
_WAIT_S, _POLL_S = 30.0, 0.05


@cache
def this_boot() -> str:
    """The id of this boot of this host; "" where there is none to read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


class Boots:
    """Of this host. Every call reads or writes the storage."""

    def __init__(self, storage: LocalStorage) -> None:
        self._storage, self._host = storage, socket.gethostname()
        self._path = f"{BOOTS}/{self._host}"

    def earlier(self) -> str | None:
        """The boot before this one that has written to the domain; None: there was none, or it is this one."""
        known, boot = self._noted(), this_boot()
        return known if boot and known not in ("", boot) else None

    def note(self) -> None:
        """This boot writes from now on. Durable on return, so that a loss of power after it will be noticed."""
        if this_boot() and self._noted() != this_boot():
            self._storage.put(self._path, this_boot().encode())
            self._storage.sync([self._path])

    def _noted(self) -> str:
        return (self._storage.get(self._path) or b"").decode("ascii", "replace").strip("\0\n ")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """As the only process of this host. Raises DomainError after 30 s."""
        path = self._storage.root / BOOTS / f".{self._host}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            until_s = time.monotonic() + _WAIT_S
            while not _locked(descriptor):
                if time.monotonic() > until_s:
                    raise DomainError(
                        f"{self._storage.uri}: host {self._host} was booted again, and another process has been repairing the domain "
                        f"for {_WAIT_S:.0f} s (it holds {path}): wait for it, or stop it, then try again"
                    )
                time.sleep(_POLL_S)
            yield
        finally:
            os.close(descriptor)  # which gives the lock back


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
