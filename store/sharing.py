"""All users of one store in a process share one backend, and so one group commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from spark_jms.store.errors import StoreClosedError
from spark_jms.store.forks import abandon_in_child, this_process
from spark_jms.store.opening import StoreOpening


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
    """By key. A forked child starts without any: the open backends belong to the parent."""

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
