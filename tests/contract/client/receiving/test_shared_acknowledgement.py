"""Acknowledgements of several threads share one store write (C8, C11)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import spark_jms
from spark_jms.claims.records.life_cycle import AcknowledgementTable
from spark_jms.client import Consumer, Context
from spark_jms.client.receiving.receiver import AcknowledgeMode
from spark_jms.store import Session
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import delivery_of, members_of, subscriber_of
from tests.harness.messages.shorthands import send_texts

LIMIT_S = 30
THREADS = 8


@pytest.fixture(params=["memory", "file"])
def context(request: pytest.FixtureRequest) -> Iterator[Context]:
    with memory_domain(request.param, orders="queue") as root, spark_jms.connect(root) as opened:
        yield opened


class HeldWrites:
    """Counts the writes of a consumer's session, and holds the first until `gate`."""

    def __init__(self, consumer: Consumer) -> None:
        members = members_of(subscriber_of(consumer))
        self.session: Session = members.session
        self.name = "change"
        self._write: Callable[..., Any] = getattr(self.session, self.name)
        self.count = 0
        self.held, self.gate = threading.Event(), threading.Event()

    def write(self, *arguments: Any) -> Any:
        self.count += 1
        if self.count == 1:
            self.held.set()
            assert self.gate.wait(LIMIT_S)
        return self._write(*arguments)


def test_acknowledgements_of_threads_share_a_store_write(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C11: what is acknowledged during a write is in the next one, and each call returns when its own is written."""
    send_texts(context, *map(str, range(THREADS + 1)))
    with context.consumer("orders", acknowledge="individual", prefetch=100) as consumer:
        messages: list[Any] = [consumer.receive(timeout=LIMIT_S) for _ in range(THREADS + 1)]
        writes = HeldWrites(consumer)
        monkeypatch.setattr(writes.session, writes.name, writes.write)
        finished = delivery_of(consumer).finished
        with ThreadPoolExecutor(THREADS + 1) as threads:
            first = threads.submit(messages[0].acknowledge)
            assert writes.held.wait(LIMIT_S)
            rest = [threads.submit(message.acknowledge) for message in messages[1:]]
            wait_until(lambda: len(finished) == THREADS + 1, LIMIT_S)
            writes.gate.set()
            for done in [first, *rest]:
                done.result(LIMIT_S)
        assert writes.count == 2
        assert consumer.statistics().acknowledged == THREADS + 1
    assert list(context.browser("orders")) == []


@pytest.mark.parametrize("mode", ["auto", "dups-ok"])
def test_another_change_before_the_claim_that_acknowledges_takes_nothing_from_it(
    context: Context, monkeypatch: pytest.MonkeyPatch, mode: AcknowledgeMode
) -> None:
    """C8: the context's thread notes that rows are in their table, after the receiving thread has said what its next claim
    acknowledges and before it claims."""
    send_texts(context, "0", "1", "2")
    with context.consumer("orders", acknowledge=mode, prefetch=1) as consumer:
        subscriber = subscriber_of(consumer)
        members = members_of(subscriber)
        finish, write, changes = members.finish, AcknowledgementTable.write, list[int]()

        def finish_and_flush(parts: Any) -> None:
            finish(parts)
            monkeypatch.setattr(AcknowledgementTable, "write", write)
            subscriber.flush_outbox()
            changes.append(members.known[0].state.outbox == ())

        monkeypatch.setattr(AcknowledgementTable, "write", lambda *_: {})  # the rows wait
        assert all(consumer.receive(timeout=LIMIT_S) for _ in range(2))
        monkeypatch.setattr(members, "finish", finish_and_flush)
        received = consumer.receive(timeout=LIMIT_S)
        assert received is not None
        assert received.text == "2"
        assert changes == [True]
        assert [message.text for message in context.browser("orders")] == ["2"]


def test_threads_that_keep_acknowledging_share_every_store_write(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8, C11: a call returns once its own acknowledgement is written, so that its thread takes part in the next write.
    Threads that wait for a lock instead would leave all later writes to one of them."""
    each = 10
    send_texts(context, *map(str, range(THREADS * each)))
    with context.consumer("orders", acknowledge="individual", prefetch=1000) as consumer:
        messages: list[Any] = [consumer.receive(timeout=LIMIT_S) for _ in range(THREADS * each)]
        finished, running = delivery_of(consumer).finished, set(range(THREADS))
        writes, alone = HeldWrites(consumer), threading.Event()
        write: Callable[..., Any] = getattr(writes.session, writes.name)
        commits: list[int] = []

        def slow(*arguments: Any) -> Any:
            commits.append(len(finished))
            commit_now = threading.Event()
            for _ in range(1 if alone.is_set() else LIMIT_S * 100):
                if len(finished) >= len(running):
                    break
                commit_now.wait(0.01)
            else:
                alone.set()  # the other threads wait for something else than their own write
            return write(*arguments)

        def work(number: int) -> None:
            for message in messages[number::THREADS]:
                message.acknowledge()
            running.remove(number)

        monkeypatch.setattr(writes.session, writes.name, slow)
        with ThreadPoolExecutor(THREADS) as threads:
            for done in [threads.submit(work, number) for number in range(THREADS)]:
                done.result(2 * LIMIT_S)
        monkeypatch.undo()
        assert not alone.is_set(), f"writes of {commits} acknowledgements"
        assert len(commits) <= 3 * each


def test_interrupted_thread_leaves_the_acknowledgements_of_others_to_the_next_write(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8, C11: Ctrl-C in the thread that writes for several."""
    send_texts(context, "0", "1", "2")
    with context.consumer("orders", acknowledge="individual", prefetch=10) as consumer:
        messages: list[Any] = [consumer.receive(timeout=LIMIT_S) for _ in range(3)]
        finished = delivery_of(consumer).finished
        writes = HeldWrites(consumer)

        def interrupted(*arguments: Any) -> Any:
            answer = writes.write(*arguments)
            if writes.count == 2:
                raise KeyboardInterrupt
            return answer

        monkeypatch.setattr(writes.session, writes.name, interrupted)
        outcomes: dict[int, str] = {}

        def acknowledge(number: int) -> None:
            try:
                messages[number].acknowledge()
                outcomes[number] = "acknowledged"
            except KeyboardInterrupt:
                outcomes[number] = "interrupted"

        threads = [threading.Thread(target=acknowledge, args=(number,)) for number in range(3)]
        threads[0].start()
        assert writes.held.wait(LIMIT_S)
        for thread in threads[1:]:
            thread.start()
        wait_until(lambda: len(finished) == 3, LIMIT_S, what="the others to queue up")
        writes.gate.set()
        for thread in threads:
            thread.join(LIMIT_S)
        assert outcomes[0] == "acknowledged"
        assert sorted((outcomes[1], outcomes[2])) == ["acknowledged", "interrupted"]
    assert list(context.browser("orders")) == []
