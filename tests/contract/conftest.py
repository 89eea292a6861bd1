"""Shared by the client's tests: a domain on each store and an open context."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.records import shared
from spark_jms.client import Context
from spark_jms.testing import memory_domain


@pytest.fixture(params=["handed over", "shared"])
def sharing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How consumers have a record set: one after the other, or all at once."""
    monkeypatch.setattr(shared, "SHARES", request.param == "shared")


FOUR = {"kind": "distributed-queue", "members": 4}


@pytest.fixture(params=["memory", "file", "sqlite", "postgresql"])
def client_root(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    store = request.param
    if store == "sqlite":
        store = f"jdbc:sqlite:///{tmp_path}/store.db"
    elif store == "postgresql":
        store = request.getfixturevalue("postgresql").uri()
    with memory_domain(
        store, orders="queue", prices="topic", spread=FOUR, small={"kind": "queue", "max_message_bytes": 10}
    ) as where:
        yield where


@pytest.fixture
def context(client_root: str) -> Iterator[Context]:
    with spark_jms.connect(client_root) as opened:
        yield opened


@pytest.fixture
def alone(client_root: str) -> Iterator[Context]:
    """A context whose housekeeping completes nothing."""
    with spark_jms.connect(client_root, housekeeping=False) as opened:
        yield opened
