"""Acknowledgements of several threads share one store write (C8, C11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import spark_jms
from spark_jms.client import Consumer, Context
from spark_jms.store import Handle, Operation, Session
from spark_jms.testing import memory_domain, wait_until
from tests.contract.messages import send_texts

LIMIT_S = 30
THREADS = 8


@pytest.fixture(params=["memory", "file"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with memory_domain(request.param, orders="queue") as root, spark_jms.connect(root) as opened:
        yield opened


class HeldCommits:
    """Counts the commits of a consumer's session, and holds the first until `open`."""

    def __init__(self, consumer: Consumer) -> None:
        self.session: Session = consumer._receiver._subscriber.members.session
        self._commit: Callable[[Mapping[Handle, Sequence[Operation]]], None] = self.session.commit
        self.count = 0
        self.held, self.gate = threading.Event(), threading.Event()

    def commit(self, changes: Mapping[Handle, Sequence[Operation]]) -> None:
        self.count += 1
        if self.count == 1:
            self.held.set()
            assert self.gate.wait(LIMIT_S)
        self._commit(changes)


def test_acknowledgements_of_threads_share_a_store_write(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C11: what is acknowledged during a write is in the next one, and each call returns when its own is written."""
    send_texts(context, *map(str, range(THREADS + 1)))
    with context.consumer("orders", acknowledge="individual", prefetch=100) as consumer:
        messages: list[Any] = [consumer.receive(timeout=LIMIT_S) for _ in range(THREADS + 1)]
        commits = HeldCommits(consumer)
        monkeypatch.setattr(commits.session, "commit", commits.commit)
        finished = consumer._receiver._delivery.finished
        with ThreadPoolExecutor(THREADS + 1) as threads:
            first = threads.submit(messages[0].acknowledge)
            assert commits.held.wait(LIMIT_S)
            rest = [threads.submit(message.acknowledge) for message in messages[1:]]
            wait_until(lambda: len(finished) == THREADS + 1, LIMIT_S)
            commits.gate.set()
            for done in [first, *rest]:
                done.result(LIMIT_S)
        assert commits.count == 2
        assert consumer.statistics().acknowledged == THREADS + 1
    assert list(context.browser("orders")) == []
