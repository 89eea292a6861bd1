"""The thread of the asynchronous sends: order, counts and bounds over any program of sends, without a table (T11)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.client.messages.message import Message
from spark_jms.client.sending import asynchronous_send
from spark_jms.client.sending.asynchronous_send import AsynchronousSend, AsynchronousSender
from spark_jms.client.sending.shared_send import OutgoingMessages, Part, SharedSender
from spark_jms.errors import CommitOutcomeUnknownError
from spark_jms.testing.domain import wait_until

LIMIT_S = 30
PRODUCERS = ("a", "b", "c")  # `a` and `b` send to one destination, `c` to another
SENDS = st.lists(
    st.tuples(
        st.sampled_from(PRODUCERS), st.integers(0, 6), st.sampled_from(["sent", "refused", "raises", "waits", "held"])
    ),
    max_size=60,
)


class Table:
    """Stands for the SharedSender of a destination: it takes what it is given, or refuses it, or makes it wait: what is `held`, and
    what the same producer sends behind that."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.batches: list[int] = []

    def try_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception | None]:
        self.batches.append(len(outgoing))
        waiting: set[str] = set()
        outcomes: list[Part | Exception | None] = []
        for one in outgoing:
            (message,) = one.messages
            assert isinstance(message, Message)
            if message.text == "held" or (one.producer in waiting and message.text != "refused"):
                waiting.add(one.producer)
                outcomes.append(None)
            else:
                outcomes += self.send_all([one])
        return outcomes

    def send_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception]:
        outcomes: list[Part | Exception] = []
        for one in outgoing:
            (message,) = one.messages
            assert isinstance(message, Message)
            refused = message.text == "refused"
            if not refused:
                self.taken.append((one.producer, one.turn))
            outcomes.append(ValueError("refused") if refused else Part(one))
        return outcomes


@settings(max_examples=60, deadline=None)
@given(SENDS, st.sampled_from([0, 0.001, 60]))
def test_completions_follow_the_sends_of_each_producer(program: list[tuple[str, int, str]], linger_s: float) -> None:
    """T11: one at a time, each once, whatever is refused and whatever listeners raise; a producer that waits finds its sends in
    the table; nothing is outstanding in the end."""
    sender = AsynchronousSender(max_messages=8, max_bytes=20, linger_s=linger_s)
    tables = {"a": Table(), "c": Table()}
    completed: list[tuple[str, int, bool]] = []
    threads: set[threading.Thread] = set()
    running = threading.Lock()

    def complete(producer: str, number: int, what: str, outcome: Part | Exception) -> None:
        assert running.acquire(blocking=False), "two listeners run at once"
        try:
            threads.add(threading.current_thread())
            completed.append((producer, number, isinstance(outcome, Exception)))
            if what == "raises":
                raise RuntimeError("a listener of the test")
        finally:
            running.release()

    def table_of(producer: str) -> Table:
        return tables["a" if producer == "b" else producer]

    for number, (producer, size, what) in enumerate(program):
        outgoing = OutgoingMessages([Message(text=what)], number, 0, producer=producer)
        done: Any = partial(complete, producer, number, what)
        sender.submit(AsynchronousSend(cast(SharedSender, table_of(producer)), outgoing, size, done, lambda: None))
        if what == "waits":
            sender.wait_until_sent(producer)
            assert (producer, number) in table_of(producer).taken
    for producer in PRODUCERS:
        sender.wait_until_complete(producer)
        assert sender.outstanding(producer) == 0
    sender.close()
    expected = [(producer, number, what == "refused") for number, (producer, _, what) in enumerate(program)]
    assert sorted(completed, key=lambda each: each[1]) == expected
    for producer in PRODUCERS:
        assert [each for each in completed if each[0] == producer] == [e for e in expected if e[0] == producer]
        taken = [number for name, number in table_of(producer).taken if name == producer]
        assert taken == [number for name, number, refused in expected if name == producer and not refused]
    assert len(threads) == bool(program)
    assert sender.failures == sum(what == "raises" for _, _, what in program)
    assert all(batch <= asynchronous_send.BATCH for table in tables.values() for batch in table.batches)


def queue_one(sender: AsynchronousSender, table: Table, done: Any = lambda _: None) -> None:
    outgoing = OutgoingMessages([Message(text="x")], 0, 0, producer="a")
    sender.submit(AsynchronousSend(cast(SharedSender, table), outgoing, 1, done, lambda: None))


def test_sends_wait_for_others_until_a_call_waits_for_them() -> None:
    """T11: `asynchronousSendLinger`."""
    sender, table = AsynchronousSender(linger_s=60), Table()
    for ends in (lambda: sender.wait_until_sent("a"), lambda: sender.wait_until_complete("a"), sender.close):
        for _ in range(3):
            queue_one(sender, table)
        ends()
    assert table.batches == [3, 3, 3]


def test_sends_wait_no_longer_than_the_linger_and_for_no_more_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """T11: `asynchronousSendLinger`."""
    table, sent = Table(), threading.Event()
    soon = AsynchronousSender(linger_s=0.01)
    queue_one(soon, table, lambda _: sent.set())
    assert sent.wait(LIMIT_S)
    soon.close()
    for batch, max_bytes in ((2, 100), (100, 4)):  # half of the bytes that may be outstanding are a batch too
        monkeypatch.setattr(asynchronous_send, "BATCH", batch)
        late, completed = AsynchronousSender(linger_s=60, max_bytes=max_bytes), threading.Semaphore(0)
        for _ in range(2):
            queue_one(late, table, lambda _, completed=completed: completed.release())
        assert completed.acquire(timeout=LIMIT_S)
        late.close()
    assert table.batches == [1, 2, 2]


@pytest.mark.parametrize("place", ["own_copy", "decided"])
def test_thread_without_memory_ends_no_send_unheard(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """T11: an error beside the send itself, as MemoryError; each listener is called, later sends are sent, and closing returns."""

    class Failing(Table):
        def try_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception | None]:
            if place == "own_copy":
                raise ValueError("refused")
            return super().try_all(outgoing)

    def out_of_memory(*_: Any) -> Any:
        raise MemoryError

    sender, completed = AsynchronousSender(), list[Part | Exception]()

    def submit(table: Table, decided: Any = None) -> None:
        outgoing = OutgoingMessages([Message(text="x")], 0, 0, producer="a")
        to = cast(SharedSender, table)
        sender.submit(AsynchronousSend(to, outgoing, 1, completed.append, lambda: None, decided=decided))

    with monkeypatch.context() as patch:
        patch.setattr(asynchronous_send, "own_copy", out_of_memory)
        submit(Failing(), out_of_memory if place == "decided" else None)
        waiting = threading.Thread(target=sender.wait_until_complete, args=("a",), daemon=True)
        waiting.start()
        waiting.join(LIMIT_S)
        assert not waiting.is_alive()
    assert isinstance(completed[0], CommitOutcomeUnknownError if place == "own_copy" else Part)
    submit(Table())
    sender.close()
    assert isinstance(completed[1], Part)
    assert sender.outstanding("a") == 0


def test_held_destination_holds_back_no_other() -> None:
    """T11: neither its sends nor the room; it has room of its own, and what is sent to it meanwhile stays behind."""

    class Full(Table):
        def __init__(self) -> None:
            super().__init__()
            self.waits, self.has_room = threading.Event(), threading.Event()

        def send_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception]:
            self.waits.set()
            assert self.has_room.wait(LIMIT_S)
            return super().send_all(outgoing)

    sender, full, free = AsynchronousSender(max_messages=3), Full(), Table()
    completed: list[tuple[str, int]] = []
    done = threading.Semaphore(0)

    def submit(table: Table, producer: str, number: int, text: str) -> None:
        def complete(_: Part | Exception) -> None:
            completed.append((producer, number))
            done.release()

        outgoing = OutgoingMessages([Message(text=text)], number, 0, producer=producer)
        sender.submit(AsynchronousSend(cast(SharedSender, table), outgoing, 1, complete, lambda: None))

    submit(full, "a", 0, "held")
    assert full.waits.wait(LIMIT_S)
    for number in (1, 2):
        submit(full, "a", number, "sent")
    for number in range(20):
        submit(free, "c", number, "sent")
    for _ in range(20):
        assert done.acquire(timeout=LIMIT_S)
    assert completed == [("c", number) for number in range(20)]
    blocked = threading.Thread(target=submit, args=(full, "a", 3, "sent"), daemon=True)
    blocked.start()
    wait_until(lambda: sender.waiting_calls == 1)
    sender.wait_until_sent("c")
    full.has_room.set()
    blocked.join(LIMIT_S)
    sender.wait_until_complete("a")
    assert completed[20:] == [("a", number) for number in range(4)]
    assert full.taken == [("a", number) for number in range(4)]
    sender.close()
