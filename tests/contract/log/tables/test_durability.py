"""Which files are on disk when a send returns (C5, C13). No test cuts the power; these check the order of writes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.clean_up import checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """The syncs and links below a root, in order."""
    seen: list[tuple[str, Path]] = []
    fsync, link = os.fsync, os.link

    def synced(descriptor: int) -> None:
        seen.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def linked(source: Any, target: Any, **options: int) -> None:
        link(source, target, **options)
        seen.append(("link", Path(target)))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "link", linked)

    def told(root: str) -> list[str]:
        steps = [f"{what} {path.relative_to(root)}" for what, path in seen if path.is_relative_to(root)]
        seen.clear()
        return [step for step in steps if "_jmsq/store" not in step]

    return told


def kind(step: str) -> str:
    """A step without the random parts of its names."""
    what, path = step.split()
    staged = ".json." in path
    return f"{what} {'log file' if path.endswith('.json') or staged else 'data file' if 'parquet' in path else path}"


def test_power_durability_syncs_before_the_commit(steps: Callable[[str], list[str]]) -> None:
    """C5: syncs data files, their folder and the log file; then links the log file; then syncs its folder."""
    with (
        memory_domain(orders={"kind": "distributed-queue", "members": 2, "durability": "power"}) as root,
        connect(root, housekeeping=False) as context,
    ):
        steps(root)
        context.producer("orders").send_many({"text": str(n)} for n in range(4))
        commit = [
            "sync data file",
            "sync data file",
            "sync orders",
            "sync log file",
            "link log file",
            "sync orders/_delta_log",
        ]
        assert [kind(step) for step in steps(root)] == commit
        for _ in range(8):
            context.producer("orders").send_many({"text": "x"} for _ in range(2))
        steps(root)
        log = domain_of(context).log("orders")
        compact(log)
        assert [kind(step) for step in steps(root)] == 2 * [commit[0], *commit[2:]]
        checkpoint(log, every=1)
        assert f"sync orders/_delta_log/{log.snapshot.version:020d}.checkpoint.parquet" in steps(root)


def test_process_durability_syncs_nothing(steps: Callable[[str], list[str]]) -> None:
    """C5: no send waits for the disk; `durability` can change while jobs run."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        assert "sync orders/_delta_log/00000000000000000000.json" in steps(root)  # a new destination is synced once
        producer = context.producer("orders")
        producer.send(text="a")
        assert [kind(step) for step in steps(root)] == ["link log file"]
        apply_destinations(Domain(root), [Destination("orders", "queue", durability="power")], lambda *_: False)
        steps(root)
        producer.send(text="b")
        assert "sync data file" in [kind(step) for step in steps(root)]
