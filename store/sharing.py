"""Openings of one store by one process share one backend, and so one group commit."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar


class Retained(Protocol):
    def retain(self) -> bool:
        """One user more; False when the last one has closed it."""


B = TypeVar("B", bound=Retained)


class SharedBackends(Generic[B]):
    """By key. A forked child begins with none: what the parent has open is the parent's."""

    def __init__(self) -> None:
        self._backends: dict[tuple[str, int], B] = {}
        self._lock = threading.Lock()
        _all.add(self)

    def take(self, key: tuple[str, int], make: Callable[[], B]) -> B:
        with self._lock:
            backend = self._backends.get(key)
            if backend is None or not backend.retain():
                backend = self._backends[key] = make()
            return backend

    def forget(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held it at the fork
        self._backends.clear()


_all: weakref.WeakSet[SharedBackends[Any]] = weakref.WeakSet()


def _forget_in_child() -> None:
    for shared in list(_all):
        shared.forget()


os.register_at_fork(after_in_child=_forget_in_child)
