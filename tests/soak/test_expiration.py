"""A million expirations by the search of another process, beside a consumer of live messages (T6).

Sender, consumer and housekeeping are a process each, as in life. The deliveries are measured three times: without housekeeping,
beside housekeeping that finds nothing expired, and beside the search.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.statistics import collect
from spark_jms.claims.servers.stores import state_of
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import QUEUE_SUBSCRIPTION
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from tests.harness.project import PROJECT

COUNT = int(os.environ.get("JMSQ_EXPIRATIONS", "1000000"))
PER_S, MEASURED_S, LIMIT_S = 200, 20.0, 1_200.0
_IDS = re.compile(
    rb"<ExpiredJMSMessage JMSMessageID='([^']+)' >\n <HeaderFields JMSPriority='4' />\n</ExpiredJMSMessage>\n"
)


def deliveries_ms(context: Context, is_over: Callable[[], bool]) -> list[float]:
    """From send to receive, sorted, of messages that another process sends until then."""
    ended, found = threading.Event(), list[float]()
    command = [sys.executable, "-m", "tests.harness.programs.paced_sender", context.root, str(PER_S)]
    sender = subprocess.Popen(command, cwd=PROJECT, stdin=subprocess.PIPE)

    def wait() -> None:
        try:
            while not is_over() and sender.poll() is None:
                time.sleep(0.2)
        finally:
            sender.communicate(timeout=60)
            ended.set()

    waits = threading.Thread(target=wait)
    with context.consumer("orders", acknowledge="auto") as consumer:
        waits.start()
        while (message := consumer.receive(timeout=1)) is not None or not ended.is_set():
            if message is not None:
                found.append((time.monotonic_ns() - int(str(message.properties["ns"]))) / 1e6)
    waits.join()
    assert sender.returncode == 0
    return sorted(found)


def for_a_while() -> Callable[[], bool]:
    until_s = time.monotonic() + MEASURED_S
    return lambda: time.monotonic() >= until_s


@contextmanager
def housekeeping(root: str, told: Path) -> Iterator[None]:
    """`jmsq housekeep`, whose log is appended to the file."""
    command = [sys.executable, "-m", "spark_jms.cli", "housekeep", "--root", root, "--every", "1s"]
    with told.open("ab") as log:
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=log)
    try:
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def show(what: str, delays: list[float]) -> None:
    p50, p99 = (delays[int(len(delays) * share)] for share in (0.5, 0.99))
    print(f"{len(delays):,} deliveries {what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


@pytest.mark.soak
def test_million_expirations_are_each_logged_and_counted_once(tmp_path: Path) -> None:
    """T6: while live messages are delivered; the log is that of `jmsq housekeep`."""
    root, told = str(tmp_path / "domain"), tmp_path / "log"
    orders = {"kind": "queue", "expirationPolicy": "Log", "expirationLoggingPolicy": "JMSPriority"}
    apply(root, {"destinations": {"orders": orders}, "expirationScanInterval": "1 s"})
    domain = Domain(root)
    with connect(root, housekeeping=False) as context, opened_store(domain) as store:
        show("without housekeeping", deliveries_ms(context, for_a_while()))
        with housekeeping(root, told):
            show("beside housekeeping", deliveries_ms(context, for_a_while()))
        step = min(COUNT, 50_000)
        rows = pa.table({"text": ["x"] * step, "JMSExpiration": pa.repeat(pa.scalar(now_ms() - 1, pa.int64()), step)})
        with context.producer("orders") as producer:
            for _ in range(COUNT // step):
                producer.send_table(rows)
        snapshot, begun_s = domain.log("orders").refresh(), time.monotonic()

        def all_expired() -> bool:
            """Asks for little and seldom: what this process computes delays its deliveries."""
            time.sleep(1)
            assert time.monotonic() - begun_s < LIMIT_S
            return state_of(store, snapshot, QUEUE_SUBSCRIPTION, 0).expired >= COUNT

        with housekeeping(root, told):
            delays = deliveries_ms(context, all_expired)
            took_s = time.monotonic() - begun_s
        show("beside the search", delays)
        assert collect(domain, store, "orders").expired == COUNT
    logged = _IDS.findall(told.read_bytes())
    print(f"{COUNT:,} expirations in {took_s:.0f} s, {len(logged):,} lines in the log of the search")
    assert len(logged) == len(set(logged)) <= COUNT  # the consumer has found and logged the others
    assert logged, "the search has found some"
