"""What the tests of the command share: the destinations, and shorthands for results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import Result

MODULE = {
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 2},
        "prices": {"kind": "topic"},
        "invoices": {"kind": "queue"},
    }
}
ON_SERVERS = {
    "servers": {"a": {"store": "file"}, "b": {"store": "file"}},
    "destinations": {"orders": {"kind": "distributed-queue", "servers": ["a", "b"]}, "plain": {"kind": "queue"}},
}


Jmsq = Callable[..., Result]


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def files_of(root: str) -> dict[str, bytes]:
    """Every file of the domain but those of live sessions."""
    return {
        str(path): path.read_bytes() for path in Path(root).rglob("*") if path.is_file() and "session" not in str(path)
    }
