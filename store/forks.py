"""What a process has open belongs to that process: a forked child abandons it, through this one registry."""

from __future__ import annotations

import os
import weakref
from contextlib import ExitStack
from typing import Protocol


class Abandonable(Protocol):
    def abandon(self) -> None:
        """In a forked child: closes the copies of descriptors and sends nothing. It takes no lock, because a thread of the
        parent may have held it at the fork."""


def abandon_in_child(thing: Abandonable) -> None:
    """Does not keep `thing` alive."""
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
