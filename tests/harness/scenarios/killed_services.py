"""`jmsq services` killed at random while messages expire (T3, T6): for the test of every day and the soak."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.claims.upkeep.usage_history import UsageHistory, UsageHistoryRow, usage_history
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.usage_history import USAGE_HISTORY
from spark_jms.testing import wait_until
from tests.harness.processes import forked

DESTINATIONS = {
    "orders": {"kind": "queue", "expirationPolicy": "Redirect", "errorDestination": "late"},
    "late": {"kind": "queue"},
    "news": {"kind": "topic"},
}
LIMIT_S = 120


def check_killed_services(path: Path, engine: str, kills: int, each: int, seed: int, most: int = 3) -> None:
    """Before each start `each` messages more are sent that expire; the process is killed with `kill -9` after 0 to `most` rounds of
    a service. In the end each has expired once, and the usage history equals a recount from scratch."""
    root, chance = str(path / "domain"), random.Random(seed)
    apply(root, {"destinations": DESTINATIONS, "expirationScanInterval": "100 ms"})
    with connect(root, housekeeping=False) as context:
        context.consumer("news", subscription="a").close()
    command = [sys.executable, "-m", "spark_jms.cli", "services", "--root", root, "--every", "0.1s", "--json"]
    command += ["--only", "expiration", "--only", "lag", "--only", "usage", "--engine", engine]
    command += ["--checkpoint", str(path / "checkpoint")]
    for _ in range(kills):
        _send(root, each)
        running = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert running.stdout is not None
        try:
            _wait_for_rounds(running.stdout, chance.randint(0, most), max)
        finally:
            running.kill()
            running.wait()
            running.stdout.close()
    _send(root, each)
    _run_to_the_end(command, root, (kills + 1) * each)
    with connect(root, housekeeping=False) as context:
        arrived = Counter(message.text for message in context.browser("late"))
    assert arrived == {f"{n}": kills + 1 for n in range(each)}


def _send(root: str, each: int) -> None:
    """Their time was over more than a minute ago, so that none waits for its minute."""
    over = pa.repeat(pa.scalar(now_ms() - 90_000, pa.int64()), each)
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "news"):
            context.producer(name).send_table(pa.table({"text": [f"{n}" for n in range(each)], "JMSExpiration": over}))


def _wait_for_rounds(out: IO[bytes], rounds: int, which: Callable[[Iterable[int]], int]) -> None:
    """Of the service that has most of them, or fewest."""
    for line in out:
        if which(one["rounds"] for one in json.loads(line)["services"]) >= rounds:
            return
    raise AssertionError("the services have ended by themselves")


def _run_to_the_end(command: list[str], root: str, count: int) -> None:
    domain = Domain(root)
    with opened_store(domain) as store:

        def expired() -> tuple[int, int]:
            return collect(domain, store, "orders").expired, collect(domain, store, "news").expired

        last = forked.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert last.stdout is not None
        try:
            _wait_for_rounds(last.stdout, 1, min)
            wait_until(lambda: expired() == (count, count), LIMIT_S, lambda: f"{expired()}")
        finally:
            last.send_signal(signal.SIGTERM)
            out, err = last.communicate(timeout=60)
        assert last.returncode == 0, err
        shown = json.loads(out.splitlines()[-1])
        assert {one["state"] for one in shown["services"]} == {"ok"}, shown
        assert expired() == (count, count)
        assert _recorded(domain, store) == {("orders", count, count), ("news", count, count), ("late", count, 0)}
        domain.storage.delete_all(USAGE_HISTORY)
        fresh = Domain(root)
        assert _recorded(fresh, store) == {("orders", count, count), ("news", count, count), ("late", count, 0)}


def _recorded(domain: Domain, store: Any) -> set[tuple[str, int, int]]:
    """Of each destination, once everything is recorded, also what a killed process has left in a record set: sent and expired."""
    rounds = Rounds(domain, store, clean_up=False)
    rounds.run(domain.destinations())
    rounds.close()
    assert UsageHistory(domain, store).record(domain.destinations())[1] == {}
    found: dict[str, list[UsageHistoryRow]] = {}
    for row in usage_history(domain, domain.destinations()):
        found.setdefault(row.destination, []).append(row)
    return {(name, sum(row.sent for row in rows), sum(row.expired for row in rows)) for name, rows in found.items()}
