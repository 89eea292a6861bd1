"""Domains on servers with file stores of their own, servers that cannot be used for a while, and batches of their messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import spark_jms
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until

EVERYTHING = Limits()
SERVERS = {name: {"store": "file"} for name in "abc"}


def queue_on(*servers: str, **more: Any) -> dict[str, Any]:
    """A module with `orders`, a distributed queue on these servers."""
    orders = {"kind": "distributed-queue", "servers": list(servers), **more}
    return {"servers": SERVERS, "destinations": {"orders": orders}}


def applied(tmp_path: Path, module: dict[str, Any]) -> str:
    """The root of a new domain with what the module declares."""
    root = str(tmp_path / "root")
    spark_jms.apply(root, module)
    return root


class Away:
    """Moves the folder of a server's file store away, and back."""

    def __init__(self, root: str, server: str) -> None:
        self._here = Path(root) / "_jmsq" / "stores" / server
        self._there = self._here.with_name(f"{server}-away")

    def __enter__(self) -> None:
        self._here.rename(self._there)

    def __exit__(self, *_: object) -> None:
        self._there.rename(self._here)


@contextmanager
def stopped(root: str, server: str) -> Iterator[None]:
    """An administrator has stopped the server meanwhile."""
    stop_server(Domain(root), server)
    try:
        yield
    finally:
        start_server(Domain(root), server)


def next_batch(subscriber: Subscriber, start: Batch, limits: Limits = EVERYTHING) -> Batch:
    found: list[Batch] = []

    def look() -> bool:
        batch = subscriber.next_batch(start, limits)
        found.extend([batch] if batch else [])
        return bool(found)

    wait_until(look)
    return found[0]
