"""A backup beside running senders and consumers, restored and accounted for (C19)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.backup import back_up, restore
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until
from tests.harness.processes import forked

MODULE: dict[str, Any] = {
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 3, "fileGrace": "1 s"},
        "prices": {"kind": "topic"},
    }
}
SENDER = """
import sys
from spark_jms import connect
root, name, file = sys.argv[1:]
with connect(root) as context, open(file, "w", buffering=1) as sent:
    orders, prices = context.producer("orders"), context.producer("prices")
    for n in range(10**9):
        texts = [f"{name}-{n}-{i}" for i in range(5)]
        for producer in (orders, prices):
            producer.send_many({"text": text} for text in texts)
        sent.write("".join(text + "\\n" for text in texts))
"""
CONSUMER = """
import sys
from spark_jms import connect
root, destination, subscription, file = sys.argv[1:]
with connect(root) as context, open(file, "w", buffering=1) as acknowledged:
    consumer = context.consumer(destination, subscription=subscription or None, prefetch=20)
    while True:
        message = consumer.receive(timeout="1 s")
        if message:
            message.acknowledge()
            acknowledged.write(message.text + "\\n")
"""


@contextmanager
def running(*programs: tuple[str, ...]) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [forked.Popen([sys.executable, "-c", *program]) for program in programs]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def texts(file: Path) -> set[str]:
    """Whole lines only: the program may be writing one."""
    return set(file.read_text().rpartition("\n")[0].splitlines()) if file.exists() else set()


def drained(root: str, destination: str, subscription: str | None) -> dict[str, bool]:
    with spark_jms.connect(root, housekeeping=False) as context:
        consumer = context.consumer(destination, subscription=subscription, acknowledge="dups-ok")
        found: dict[str, bool] = {}
        for message in consumer.messages(idle_timeout=1):
            assert message.text not in found, "delivered twice after the restore"
            found[message.text] = message.redelivered
        return found


def module(kind: str, directory: Path) -> dict[str, Any]:
    """The module file's content for a kind of store, or for three servers of which each has another."""
    if kind != "servers":
        return {**MODULE, "store": kind.format(directory)}
    servers = {"a": {"store": "file"}, "b": {"store": f"jdbc:sqlite:///{directory}/b.db"}}
    orders = {"kind": "distributed-queue", "servers": ["home", "a", "b"], "fileGrace": "1 s"}
    return {"servers": servers, "destinations": {**MODULE["destinations"], "orders": orders}}


@pytest.mark.parametrize("kind", ["file", "jdbc:sqlite:///{}/store.db", "servers"])
def test_backup_beside_running_jobs_loses_nothing(tmp_path: Path, kind: str) -> None:
    """C19: two senders, two consumers of a queue, one of a topic, with purges on the way. After a restore, no message that was
    sent before the backup is missing unless it was acknowledged; none that was acknowledged before comes again; all that
    come are flagged."""
    root = str(tmp_path / "domain")
    spark_jms.apply(root, module(kind, tmp_path))
    with spark_jms.connect(root) as context:
        context.consumer("prices", subscription="billing").close()
    sent = [tmp_path / f"sent-{n}" for n in "ab"]
    orders, prices = [tmp_path / f"orders-{n}" for n in "ab"], tmp_path / "prices"
    senders = [(SENDER, root, file.name, str(file)) for file in sent]
    consumers = [(CONSUMER, root, "orders", "", str(file)) for file in orders]
    billing = (CONSUMER, root, "prices", "billing", str(prices))
    taken = []
    with running(*senders, *consumers, billing) as processes:
        for n in range(2):
            wait_until(lambda n=n: min(len(texts(file)) for file in (*sent, *orders, prices)) > 50 * (n + 1), 120)
            before = {"sent": union(sent), "orders": union(orders), "prices": texts(prices)}
            domain = Domain(root)
            with opened_store(domain) as opened:
                back_up(domain, opened, str(tmp_path / f"backup-{n}"))
            taken.append((before, {"orders": union(orders), "prices": texts(prices)}))
        assert all(process.poll() is None for process in processes)
    finished = {"orders": union(orders), "prices": texts(prices)}
    for n, (before, _) in enumerate(taken):
        restored = str(tmp_path / f"restored-{n}")
        others = {"b": "file"} if kind == "servers" else {}
        restore(str(tmp_path / f"backup-{n}"), restored, "file", servers=others)
        for destination, subscription in (("orders", None), ("prices", "billing")):
            found = drained(restored, destination, subscription)
            lost = before["sent"] - found.keys() - finished[destination]
            assert not lost, f"{len(lost)} lost, such as {sorted(lost)[:3]}"
            again = found.keys() & before[destination]
            assert not again, f"{len(again)} finished before the backup come again"
            assert all(found.values()), "a message is not flagged"
            assert found, "nothing was left to deliver"


def union(files: list[Path]) -> set[str]:
    return set().union(*(texts(file) for file in files))
