"""A domain for a test: tables in a temporary directory, record sets in memory."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from spark_jms.core.destination import Destination
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.domain import create_domain
from spark_jms.store import MemoryStore


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
