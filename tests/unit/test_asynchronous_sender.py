"""The thread of the asynchronous sends: order, counts and bounds over any program of sends, without a table (T11)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.client import asynchronous_send
from spark_jms.client.asynchronous_send import AsynchronousSend, AsynchronousSender
from spark_jms.client.message import Message
from spark_jms.client.shared_send import OutgoingMessages, Part, SharedSender
from spark_jms.errors import CommitOutcomeUnknownError

LIMIT_S = 30
PRODUCERS = ("a", "b", "c")  # `a` and `b` send to one destination, `c` to another
SENDS = st.lists(
    st.tuples(st.sampled_from(PRODUCERS), st.integers(0, 6), st.sampled_from(["sent", "refused", "raises", "waits"])),
    max_size=60,
)


class Table:
    """Stands for the SharedSender of a destination: it takes what it is given, or refuses it."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, int]] = []
        self.batches: list[int] = []

    def send_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception]:
        self.batches.append(len(outgoing))
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
@given(SENDS)
def test_completions_follow_the_sends_of_each_producer(program: list[tuple[str, int, str]]) -> None:
    """T11: one at a time, each once, whatever is refused and whatever listeners raise; a producer that waits finds its sends in
    the table; nothing is outstanding in the end."""
    sender = AsynchronousSender(max_messages=8, max_bytes=20)
    tables = {"a": Table(), "c": Table()}
    completed: list[tuple[str, int, bool]] = []
    running = threading.Lock()

    def complete(producer: str, number: int, what: str, outcome: Part | Exception) -> None:
        assert running.acquire(blocking=False), "two listeners run at once"
        try:
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
    assert sender.failures == sum(what == "raises" for _, _, what in program)
    assert all(batch <= asynchronous_send.BATCH for table in tables.values() for batch in table.batches)


@pytest.mark.parametrize("place", ["own_copy", "decided"])
def test_thread_without_memory_ends_no_send_unheard(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """T11: an error beside the send itself, as MemoryError; each listener is called, later sends are sent, and closing returns."""

    class Failing(Table):
        def send_all(self, outgoing: Sequence[OutgoingMessages]) -> list[Part | Exception]:
            if place == "own_copy":
                raise ValueError("refused")
            return super().send_all(outgoing)

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
