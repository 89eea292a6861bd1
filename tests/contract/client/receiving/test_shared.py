"""Several plain clients on one destination, on each store: each message once, take-over."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

import spark_jms
from spark_jms.client import Consumer, Context, Message
from spark_jms.errors import ClosedError, ConsumerClosedException, DataLossError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.domain import is_waiting
from spark_jms.testing.inside import domain_of, members_of, subscriber_of

FOUR = {"kind": "distributed-queue", "members": 4}


@pytest.fixture(params=["memory", "file"])
def root(request: pytest.FixtureRequest) -> Iterator[str]:
    with memory_domain(request.param, orders="queue", spread=FOUR) as where:
        yield where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root) as opened:
        yield opened


class Worker(threading.Thread):
    """A consumer in a context of its own, as in another process; it ends when `done` is set."""

    def __init__(self, root: str, destination: str, mode: str, done: threading.Event, work_s: float = 0.0) -> None:
        super().__init__(daemon=True)
        self.root, self.destination, self.mode, self.done, self.work_s = root, destination, mode, done, work_s
        self.got: list[Message] = []
        self.spans: list[tuple[str | None, float, float, int]] = []
        self.error: BaseException | None = None
        self.ready = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with (
                spark_jms.connect(self.root) as context,
                context.consumer(self.destination, acknowledge=self.mode) as own,
            ):
                self.ready.set()
                while not self.done.is_set():
                    message = own.receive(timeout=0.05)
                    if message is None:
                        continue
                    began = time.monotonic()
                    self.done.wait(self.work_s)
                    message.acknowledge()
                    self.spans.append((message.group_id, began, time.monotonic(), int(message.text or "")))
                    self.got.append(message)
                own.receive(timeout=0)
        except BaseException as error:
            self.error = error
            raise


def run_together(workers: list[Worker], done: threading.Event, count: int, timeout_s: float = 40.0) -> None:
    """Wait until all have `count` messages together, and a little longer to catch duplicates."""
    try:
        wait_until(lambda: sum(len(w.got) for w in workers) >= count or any(w.error for w in workers), timeout_s)
    finally:
        done.set()
        for worker in workers:
            worker.join(timeout=30)
    assert [w.error for w in workers if w.error] == []


@pytest.mark.parametrize("destination", ["orders", "spread"])
def test_consumers_share_a_queue_and_a_third_joins(root: str, context: Context, destination: str) -> None:
    """C9, C11, D8: every message exactly once, with one member per consumer and with one member for three consumers."""
    producer = context.producer(destination)
    done = threading.Event()
    workers = [Worker(root, destination, "individual", done, work_s=0.002) for _ in range(2)]
    assert all(worker.ready.wait(30) for worker in workers)  # or a slow start leaves all of it to the first
    producer.send_many({"text": str(n)} for n in range(150))
    wait_until(lambda: sum(len(w.got) for w in workers) >= 30)
    workers.append(Worker(root, destination, "individual", done, work_s=0.002))
    for n in range(150, 200):
        producer.send(text=str(n))
    run_together(workers, done, 200)
    counts = Counter(m.text for w in workers for m in w.got)
    assert counts == Counter(str(n) for n in range(200))
    assert not any(m.redelivered for w in workers for m in w.got)
    assert sum(bool(w.got) for w in workers) >= 2
    assert list(context.browser(destination)) == []


def test_unit_of_order_has_one_consumer_at_a_time(root: str, context: Context) -> None:
    """C9, T10: two consumers never hold messages of one group at once, and the group keeps its order."""
    done = threading.Event()
    producer = context.producer("orders")
    producer.send_many({"text": str(n), "group_id": f"g{n % 5}"} for n in range(100))
    workers = [Worker(root, "orders", "client", done, work_s=0.003) for _ in range(3)]
    run_together(workers, done, 100)
    taken: dict[str | None, list[tuple[float, float, int, int]]] = {}
    for number, worker in enumerate(workers):
        for group, began, ended, text in worker.spans:
            taken.setdefault(group, []).append((began, ended, number, text))
    for group, spans in taken.items():
        spans.sort()
        overlaps = [(a, b) for a, b in itertools.pairwise(spans) if b[0] < a[1] and a[2] != b[2]]
        assert overlaps == [], f"{group} was in two consumers' hands"
        assert [text for *_, text in spans] == sorted(text for *_, text in spans), f"{group} came out of order"
    assert sorted(text for spans in taken.values() for *_, text in spans) == list(range(100))


def die(consumer: Consumer) -> None:
    """As if its process had been killed: it releases nothing."""
    store = members_of(subscriber_of(consumer)).store
    if isinstance(store, MemoryStore):
        store.crash(members_of(subscriber_of(consumer)).session)
    else:
        subscriber_of(consumer).close()


def needs_memory_store(root: str) -> None:
    """Only the memory store can end a session while its process lives."""
    if not Domain(root).store_uri.startswith("memory:"):
        pytest.skip("only the memory store can kill a session of its own process")


def test_messages_of_a_dead_consumer_go_to_others_flagged(root: str, context: Context) -> None:
    """C8, C9: its claimed messages are flagged, since it may have seen them; acknowledged ones are finished."""
    context.producer("orders").send_many({"text": str(n)} for n in range(6))
    with spark_jms.connect(root) as other, ExitStack() as stack:
        dying = stack.enter_context(context.consumer("orders", prefetch=4))
        for _ in range(3):
            message = dying.receive(timeout=5)
            if message and message.text == "1":
                message.acknowledge()
        survivor = other.consumer("orders")
        died = time.monotonic()
        die(dying)
        got = [survivor.receive(timeout=10) for _ in range(4)]
        assert time.monotonic() - died < 10
        assert [(m.text, m.redelivered) for m in got if m] == [("2", True), ("3", True), ("4", False), ("5", False)]
        assert got[-1] is not None
        got[-1].acknowledge()
        assert list(context.browser("orders")) == []


def test_fenced_consumer_cannot_acknowledge(root: str, context: Context) -> None:
    """C9, R17: receive and acknowledge raise ConsumerClosedException; close raises nothing."""
    needs_memory_store(root)
    context.producer("orders").send_many({"text": str(n)} for n in range(3))
    stale = context.consumer("orders", prefetch=1)
    message = stale.receive(timeout=5)
    assert message is not None
    die(stale)
    with pytest.raises(ConsumerClosedException):
        message.acknowledge()
    with pytest.raises(ConsumerClosedException):
        stale.receive(timeout=1)
    stale.close()
    with context.consumer("orders") as fresh:
        again = fresh.receive(timeout=5)
        assert again is not None
        assert (again.text, again.redelivered) == ("0", True)


def test_exception_listener_gets_the_error_that_ended_the_consumer(root: str, context: Context) -> None:
    """C9, D3: a ConsumerClosedException whose cause is the error; without an exception listener, close() raises it."""
    needs_memory_store(root)
    told: list[Exception] = []
    lost = context.consumer("orders", listener=lambda m: None, exception_listener=told.append)
    die(lost)
    wait_until(lambda: told)
    assert isinstance(told[0], ConsumerClosedException)
    assert told[0].__cause__ is not None
    lost.close()
    unreported = context.consumer("orders", listener=lambda m: None)
    die(unreported)
    wait_until(lambda: unreported._listener is not None and unreported._listener._unreported is not None)
    with pytest.raises(ConsumerClosedException, match="has ended"):
        unreported.close()


def test_busy_consumer_does_not_block_the_others(root: str, context: Context) -> None:
    """C9: a consumer that gets the member's record and then does not receive hands it back."""
    with spark_jms.connect(root) as other:
        producer = context.producer("orders")
        busy, active = (
            context.consumer("orders", prefetch=2),
            other.consumer("orders", acknowledge="individual", prefetch=1),
        )
        producer.send_many({"text": str(n)} for n in range(20))
        got = busy.receive(timeout=5)
        assert got is not None
        began = time.monotonic()
        for _ in range(10):  # meanwhile `busy` neither receives nor acknowledges
            message = active.receive(timeout=5)
            assert message is not None
            message.acknowledge()
        assert time.monotonic() - began < 5
        got.acknowledge()
        assert busy.statistics().acknowledged == 1


def test_consumer_with_selector_beside_one_without(root: str, context: Context) -> None:
    """C7, C9: both get their messages from every member."""
    with spark_jms.connect(root) as other:
        reds, rest = (
            other.consumer("spread", selector="color = 'red'", acknowledge="individual"),
            context.consumer("spread", selector="color <> 'red'", acknowledge="individual"),
        )
        producer = context.producer("spread")
        for n in range(16):
            producer.send(text=str(n), properties={"color": "red" if n % 8 < 4 else "blue"})
        for consumer, color in ((reds, "red"), (rest, "blue")):
            for _ in range(8):
                message = consumer.receive(timeout=10)
                assert message is not None
                assert message.properties["color"] == color
                message.acknowledge()


def test_close_wakes_a_waiting_receive(context: Context) -> None:
    """C11: receive returns None, as in JMS."""
    consumer = context.consumer("orders")
    answers: list[Message | None] = []
    thread = threading.Thread(target=lambda: answers.append(consumer.receive()))
    thread.start()
    wait_until(lambda: is_waiting(thread))
    consumer.close()
    thread.join(timeout=5)
    assert answers == [None]


def test_close_while_receive_polls(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: receive returns None at whatever step the close meets it; a later receive raises."""
    consumer = context.consumer("orders")
    consumer.receive(timeout=0)
    monkeypatch.setattr(DeltaLog, "has_news", lambda _: bool(consumer.close()))
    assert consumer.receive() is None
    with pytest.raises(ClosedError):
        consumer.receive()


def test_many_threads_send_through_one_producer(context: Context) -> None:
    """C4, C5, C11: dense sequences, nothing lost."""
    producer = context.producer("spread")
    threads = [
        threading.Thread(target=lambda name=name: [producer.send(text=f"{name}/{n}") for n in range(25)])
        for name in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    messages = list(context.browser("spread"))
    assert Counter(m.text for m in messages) == Counter(f"{name}/{n}" for name in "abcd" for n in range(25))
    for member in range(4):
        numbers = [m.sequence for m in messages if m.member == member]
        assert numbers == list(range(1, len(numbers) + 1))
    assert producer.statistics().messages == 100


def test_compaction_disturbs_neither_browser_nor_consumer(context: Context) -> None:
    """C11, C13: even if the replaced files are deleted at once."""
    from spark_jms.log.upkeep.compaction import compact

    producer = context.producer("orders")
    for n in range(20):
        producer.send(text=str(n))
    consumer = context.consumer("orders", prefetch=5)
    browser = iter(context.browser("orders"))
    got = [next(browser).text, getattr(consumer.receive(timeout=5), "text", None)]
    log = domain_of(context).log("orders")
    before = set(log.refresh().files)
    assert compact(log).compacted_files == 20
    for path in before - set(log.refresh().files):
        log.storage.delete(path)
    assert [*got[:1], *(m.text for m in browser)] == [str(n) for n in range(20)]
    assert [got[1], *(getattr(consumer.receive(timeout=5), "text", None) for _ in range(19))] == [
        str(n) for n in range(20)
    ]


def test_messages_deleted_from_the_table(context: Context) -> None:
    """C13: DataLossError, with nothing acknowledged or kept claimed; or, if allowed, the consumer skips them for good."""
    producer = context.producer("orders")
    for n in range(3):
        producer.send(text=str(n))
    log = domain_of(context).log("orders")
    log.storage.delete(log.refresh().member_files(0).files[1].path)
    with context.consumer("orders") as careful:
        for _ in range(2):
            with pytest.raises(DataLossError, match="fail_on_data_loss"):
                careful.receive(timeout=5)
    with context.consumer("orders", acknowledge="auto", fail_on_data_loss=False) as lenient:
        got = [lenient.receive(timeout=5) for _ in range(2)]
        assert [(m.text, m.redelivered) for m in got if m] == [("0", False), ("2", False)]
        assert lenient.receive(timeout=0) is None
        assert lenient.receive(timeout=0) is None
    assert list(context.browser("orders")) == []
