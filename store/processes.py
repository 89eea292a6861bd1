"""What belongs to one process: what it has open, the backends its stores share, its sessions, and its proof to own a store.

Theory of the proof, a ReadLease. An engine that was stopped does not know it, and another process may have become the engine
meanwhile. A write cannot be kept then, because the persistence refuses it. A read asks no other process, so it needs a proof:

    proof        the persistence has confirmed that this process owned it, after the engine asked
    old engine   answers from its memory until LEASE_MS after the moment at which it asked; then it asks again
    new engine   answers nothing and writes nothing until START_WAIT_MS after it became the owner

So when a newer write exists, or an answer that shows a write to which the older engine has no answer, each proof of an
older engine has expired: every answer of an engine was right at a moment between question and answer. A write that was kept
is a proof too. The answer is made before the lease is looked at, so a process that is stopped between the two notices when it
wakes. The two periods differ because the clocks of two machines do not run at exactly the same rate. A suspended machine's
clock counts on. A virtual machine that its host stops, clock included, is not covered.

A session's id names its process, so that every reader of the id can find out whether that process still runs:

    <16 hex digits>.<host>.<pid>.<start>      host: 8 hex digits of the machine's boot id; start: the process's start time

On the same host a dead process is recognised at once, and a process id that was used again is not mistaken for it. The
processes of another host count as alive while their heartbeats arrive.

What a process has open belongs to that process: a forked child abandons it, through the registry of `abandon_in_child`.

Features: C9, R8, S4, S6 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache
from typing import Generic, Protocol, TypeVar

from spark_jms.store.contract import StoreOpening
from spark_jms.store.errors import StoreClosedError

LEASE_MS = 200.0
START_WAIT_MS = 250.0
Clock = Callable[[], float]  # milliseconds that never go back
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> float:
    """Never goes back, and counts while the machine is suspended."""
    return time.clock_gettime(_CLOCK) * 1000.0


class ReadLease:
    """Thread-safe: a float is replaced by a later one, and losing such a step only costs a proof."""

    def __init__(self, now_ms: Clock = elapsed_ms) -> None:
        self.now_ms = now_ms
        self._until_ms = float("-inf")

    def holds(self) -> bool:
        return self.now_ms() < self._until_ms

    def proved(self, asked_ms: float) -> None:
        """`asked_ms`: the time before the persistence was asked."""
        self._until_ms = max(self._until_ms, asked_ms + LEASE_MS)


@lru_cache(maxsize=1)
def this_host() -> str:
    """The id of this boot of this machine and of its process namespace; "-" where there is none to read."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        return "-"
    return f"{zlib.crc32(f'{boot} {space}'.encode()):08x}"


def start_of(pid: int) -> str | None:
    """The start time of the process, in the kernel's ticks; None when it has ended, or is a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def new_session_id() -> str:
    pid = os.getpid()
    return f"{secrets.token_hex(8)}.{this_host()}.{pid}.{start_of(pid) or '-'}"


def process_gone(session_id: str) -> bool:
    """True only when it is certain."""
    parts = session_id.split(".")
    if len(parts) != 4 or parts[1] != this_host() or parts[1] == "-" or parts[3] == "-" or not parts[2].isdigit():
        return False
    return start_of(int(parts[2])) != parts[3]


class Abandonable(Protocol):
    def abandon(self) -> None:
        """In a forked child: closes the copies of descriptors and sends nothing. It takes no lock, because a thread of the
        parent may have held it at the fork."""


def abandon_in_child(thing: Abandonable) -> None:
    """A forked child abandons the thing. Does not keep `thing` alive."""
    _open.add(thing)


def this_process() -> object:
    """Identifies this process among its forked children. os.getpid() would be a system call."""
    return _process


_process = object()
_open: weakref.WeakSet[Abandonable] = weakref.WeakSet()


def _forked() -> None:
    global _process
    _process = object()
    with ExitStack() as stack:  # an error in one does not keep the others open
        for thing in list(_open):
            stack.callback(thing.abandon)


os.register_at_fork(after_in_child=_forked)


class UserCount:
    """How many stores of this process use a backend. Thread-safe."""

    def __init__(self) -> None:
        self.closed = False
        self._process = this_process()
        self._lock = threading.Lock()
        self._count = 1

    def retain(self) -> bool:
        """Counts one user more. False when the last one has already left."""
        with self._lock:
            self._count += not self.closed
            return not self.closed

    def release(self) -> bool:
        """Counts one user less. True for the last one, which closes the backend; False in a forked child."""
        if not self.is_own_process():
            return False
        with self._lock:
            self._count -= 1
            if self.closed or self._count > 0:
                return False
            self.closed = True
            return True

    def is_own_process(self) -> bool:
        """False in a forked child."""
        return self._process is this_process()

    def require_open(self) -> None:
        if self._process is not this_process():
            raise StoreClosedError("the parent of this forked process opened the store")
        if self.closed:
            raise StoreClosedError("the store is closed")


class Retained(Protocol):
    def retain(self) -> bool:
        """Counts one user more. False when the last one has already left."""


B = TypeVar("B", bound=Retained)


class SharedBackends(Generic[B]):
    """All users of one store in a process share one backend, and so one group commit. A forked child starts without any: the
    open backends belong to the parent."""

    def __init__(self) -> None:
        self._backends: dict[tuple[str, int], B] = {}
        self._opening: dict[tuple[str, int], threading.Lock] = {}
        self._lock = threading.Lock()  # never held while a store is opened
        abandon_in_child(self)

    def take(self, key: tuple[str, int], make: Callable[[], B], opening: StoreOpening) -> B:
        """A store whose opening waits holds up no other."""
        with self._lock:
            own = self._opening.setdefault(key, threading.Lock())
        with opening.alone(own):
            with self._lock:
                backend = self._backends.get(key)
            if backend is None or not backend.retain():
                backend = make()
                with self._lock:
                    self._backends[key] = backend
            return backend

    def abandon(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held the old one
        self._backends.clear()
        self._opening.clear()
