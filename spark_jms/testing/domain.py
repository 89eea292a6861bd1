"""A domain for a test, and waiting for another thread or process.

The domain has its tables in a temporary directory, and its record sets in memory. A wait ends when its condition holds, never
after a fixed time.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import create_domain
from spark_jms.store import MemoryStore

_POLL_S = 0.005
# A limit says what a quiet machine needs at most. A busy one may need several times as long, which is no fault of what is waited for.
PATIENCE = int(os.environ.get("JMSQ_PATIENCE", "1"))


@contextmanager
def memory_domain(store: str = "memory", /, **destinations: str | Mapping[str, Any]) -> Iterator[str]:
    """The root of a new domain: `with memory_domain(orders="queue", prices={"kind": "topic"}) as root`.

    A destination is its kind, or the fields of `Destination`. Only this process sees the default store; with
    `store="file"` the domain has a real file store. The end of the block removes both.
    """
    declared = [
        Destination(name, **({"kind": what} if isinstance(what, str) else what)) for name, what in destinations.items()
    ]
    name = f"testing-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory(prefix="jmsq-") as root:
        domain = create_domain(root, f"memory://{name}" if store == "memory" else store)
        apply_destinations(domain, declared, lambda destination, member: False)
        try:
            yield root
        finally:
            MemoryStore.forget(name)


def wait_until(condition: Callable[[], object], timeout_s: float = 10.0, what: str | Callable[[], str] = "") -> None:
    """Return as soon as `condition()` is true; after `PATIENCE` times the time-out, AssertionError with `what`, evaluated then."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            told = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s:g} s: {told or condition}")
        time.sleep(_POLL_S)


def is_waiting(thread: threading.Thread) -> bool:
    """The thread waits for an event or a condition now."""
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is threading.Condition.wait.__code__
