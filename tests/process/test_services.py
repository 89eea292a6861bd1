"""`jmsq services` as a process: killed, started again, and stopped (T6, C14)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

from spark_jms import apply, connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.views import opened_store
from spark_jms.log.domain import Domain
from spark_jms.testing import wait_until

COUNT, KILLS = 3_000, 3


def test_killed_services_expire_each_message_once(tmp_path: Path) -> None:
    """T6: whenever the process is killed, the next one continues; the counts equal those of the messages. SIGTERM ends it."""
    root = str(tmp_path / "domain")
    destinations = {
        "orders": {"kind": "queue", "expirationPolicy": "Redirect", "errorDestination": "late"},
        "late": {"kind": "queue"},
        "news": {"kind": "topic"},
    }
    apply(root, {"destinations": destinations, "expirationScanInterval": "100 ms"})
    with connect(root, housekeeping=False) as context:
        context.consumer("news", subscription="a").close()
        for name in ("orders", "news"):
            context.producer(name).send_many({"text": f"{n}", "time_to_live": "1 ms"} for n in range(COUNT))
    command = [sys.executable, "-m", "spark_jms.cli", "services", "--root", root, "--every", "0.1s", "--json"]
    command += ["--only", "expiration", "--only", "lag"]
    domain, chance = Domain(root), random.Random(1)
    with opened_store(domain) as store:

        def counts() -> tuple[int, int]:
            return collect(domain, store, "orders").expired, collect(domain, store, "news").expired

        for _ in range(KILLS):
            running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert running.stdout is not None
            for _ in range(chance.randint(0, 3)):
                running.stdout.readline()
            running.kill()
            running.wait()
            running.stdout.close()
        last = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert last.stdout is not None
        try:
            assert last.stdout.readline()  # it has begun, so SIGTERM no longer just kills it
            wait_until(lambda: counts() == (COUNT, COUNT), 60, lambda: f"{counts()}")
        finally:
            last.send_signal(signal.SIGTERM)
            out, err = last.communicate(timeout=60)
        assert last.returncode == 0, err
        shown = json.loads(out.splitlines()[-1])
        assert {one["service"]: one["state"] for one in shown["services"]} == {
            "expiration": "ok",
            "housekeeping": "ok",
            "lag": "ok",
        }
        assert counts() == (COUNT, COUNT)
    with connect(root, housekeeping=False) as context:
        arrived = [message.text for message in context.browser("late")]
    assert sorted(map(int, filter(None, arrived))) == list(range(COUNT))
