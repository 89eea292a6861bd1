"""What tests of quotas share (T1, T2)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from spark_jms import apply
from spark_jms.client import Context
from spark_jms.core.limits.quota import QuotaState
from spark_jms.testing.inside import domain_of

LIMIT_S = 30
QUEUE = {"kind": "queue", "quota": "small"}


def made(root: str, quota: dict[str, Any], **destinations: Any) -> None:
    apply(
        root,
        {
            "store": f"memory://quotas-{root.rsplit('/', 1)[1]}",
            "quotas": {"small": quota, "other": {"messagesMaximum": 50}},
            "destinations": {"orders": QUEUE, "free": {"kind": "queue"}, **destinations},
        },
    )


def state_of(context: Context, quota: str = "small", destination: str = "orders") -> QuotaState:
    found = domain_of(context).quotas
    return found.now(found.ledger(quota, found.limit(quota), destination)).state


def receive(context: Context, count: int, destination: str = "orders") -> None:
    with context.consumer(destination) as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=LIMIT_S)
            assert message is not None
            message.acknowledge()


def waiting(context: Context, count: int) -> Callable[[], bool]:
    return lambda: len(state_of(context).waiting) == count


def send_later(threads: ThreadPoolExecutor, context: Context, text: str, count: int = 1) -> Future[Any]:
    producer = context.producer("orders", send_timeout=LIMIT_S)
    return threads.submit(producer.send_many, [{"text": text}] * count)


def let_pass(context: Context, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """So much time for the context, which has seen the ledger before."""
    found = domain_of(context).quotas
    now_s = found.monotonic_s()
    monkeypatch.setattr(found, "monotonic_s", lambda: now_s + seconds)
