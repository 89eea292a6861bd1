"""A million expirations by the search of another process, beside a consumer of live messages (T6)."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.record_sets import state_of
from spark_jms.claims.views import opened_store
from spark_jms.client.context import Context
from spark_jms.core.destination import QUEUE_SUBSCRIPTION
from spark_jms.log.domain import Domain
from spark_jms.log.storage import now_ms
from spark_jms.testing.waiting import wait_until

COUNT = int(os.environ.get("JMSQ_EXPIRATIONS", "1000000"))
PER_S, MEASURED_S, LIMIT_S = 200, 20.0, 1_200.0
_IDS = re.compile(
    rb"<ExpiredJMSMessage JMSMessageID='([^']+)' >\n <HeaderFields JMSPriority='4' />\n</ExpiredJMSMessage>\n"
)


def p99_ms(context: Context, until: threading.Event, at_least_s: float) -> tuple[float, int]:
    """Of deliveries at 200 a second, from send to receive, until the event is set; and how many there were."""
    stop, delays = threading.Event(), list[float]()

    def send() -> None:
        begun, sent = time.monotonic(), 0
        with context.producer("orders") as producer:
            while not (stop.is_set() or (until.is_set() and time.monotonic() - begun > at_least_s)):
                producer.send(text="live", properties={"ns": time.monotonic_ns()})
                sent += 1
                time.sleep(max(begun + sent / PER_S - time.monotonic(), 0))
        stop.set()

    sender = threading.Thread(target=send)
    with context.consumer("orders", acknowledge="auto") as consumer:
        sender.start()
        try:
            while (message := consumer.receive(timeout=1)) is not None or not stop.is_set():
                if message is not None:
                    delays.append((time.monotonic_ns() - int(str(message.properties["ns"]))) / 1e6)
        finally:
            stop.set()
            sender.join()
    return sorted(delays)[int(len(delays) * 0.99)], len(delays)


@pytest.mark.soak
def test_million_expirations_are_each_logged_and_counted_once(tmp_path: Path) -> None:
    """T6: while live messages are delivered; the log is that of `jmsq housekeep`."""
    root, told = str(tmp_path / "domain"), tmp_path / "log"
    orders = {"kind": "queue", "expirationPolicy": "Log", "expirationLoggingPolicy": "JMSPriority"}
    apply(root, {"destinations": {"orders": orders}, "expirationScanInterval": "1 s"})
    over = threading.Event()
    over.set()
    with connect(root, housekeeping=False) as context:
        quiet_ms, quiet = p99_ms(context, over, MEASURED_S)
        over.clear()
        ends_ms = now_ms() - 1
        step = min(COUNT, 50_000)
        rows = pa.table({"text": ["x"] * step, "JMSExpiration": pa.repeat(pa.scalar(ends_ms, pa.int64()), step)})
        with context.producer("orders") as producer:
            for _ in range(COUNT // step):
                producer.send_table(rows)
        domain = Domain(root)
        command = [sys.executable, "-m", "spark_jms.cli", "housekeep", "--root", root, "--every", "1s"]
        with opened_store(domain) as store, told.open("wb") as log:
            begun_s = time.monotonic()
            search = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)

            snapshot = domain.log("orders").refresh()

            def all_expired() -> bool:
                """Asks for little and seldom: what this process computes delays its deliveries."""
                return over.wait(1) or state_of(store, snapshot, QUEUE_SUBSCRIPTION, 0).expired >= COUNT

            def wait() -> None:
                try:
                    wait_until(all_expired, LIMIT_S)
                finally:
                    over.set()

            waits = threading.Thread(target=wait)
            waits.start()
            try:
                busy_ms, busy = p99_ms(context, over, 0)
                waits.join()
                took_s = time.monotonic() - begun_s
            finally:
                search.send_signal(signal.SIGINT)
                search.wait(60)
            assert collect(domain, store, "orders").expired == COUNT
    logged = _IDS.findall(told.read_bytes())
    print(f"{COUNT:,} expirations in {took_s:.0f} s, {len(logged):,} lines in the log of the search")
    print(f"p99 of deliveries: {quiet_ms:.1f} ms ({quiet:,}) without, {busy_ms:.1f} ms ({busy:,}) beside them")
    assert len(logged) == len(set(logged)) <= COUNT  # the consumer has found and logged the others
    assert logged, "the search has found some"
