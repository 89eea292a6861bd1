"""How asynchronous sends end: closing, their bounds, interrupts, forks and kills (T11)."""

from __future__ import annotations

import inspect
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.client import Completion, Context, Message, Producer
from spark_jms.client.sending.asynchronous_send import AsynchronousSender
from spark_jms.errors import ClosedError, IllegalStateException
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.domain import is_waiting
from spark_jms.testing.inside import asynchronous_sends_of
from tests.harness.messages.completions import (
    LIMIT_S,
    Hold,
    Outcomes,
    browse,
    in_thread,
    numbers,
    opened_domain,
    send_texts,
)
from tests.harness.processes import forked
from tests.harness.processes.killed import killed_client


@pytest.fixture
def context() -> Iterator[Context]:
    with opened_domain() as opened:
        yield opened


# -- closing -----------------------------------------------------------------------------------------------------------
def test_close_waits_for_completions(context: Context) -> None:
    """T11: of a producer for its own, of a context for all."""
    outcomes, others = Outcomes(), Outcomes()
    for closed in (context.producer("spread"), context):
        hold = Hold(context, "spread")
        producer = closed if isinstance(closed, Producer) else context.producer("spread")
        send_texts(producer, outcomes, 0, 10)
        if closed is context:
            send_texts(context.producer("orders"), others, 0, 10)
        hold.wait_until_held()
        closing = in_thread(closed.close)
        wait_until(lambda: asynchronous_sends_of(context).waiting_calls)
        assert closing.is_alive()
        hold.open()
        closing.join(LIMIT_S)
        assert not closing.is_alive()
    assert outcomes.texts() == numbers(0, 10) * 2
    assert others.texts() == numbers(0, 10)
    with pytest.raises(ClosedError):
        producer.send(text="late", completion=outcomes)


@pytest.mark.parametrize("what", ["producer", "context"])
def test_close_in_a_listener_is_refused(context: Context, what: str) -> None:
    """T11: by name, and nothing is closed."""
    refused: list[Exception] = []
    outcomes, producer = Outcomes(), context.producer("orders")

    def close(_: Message) -> None:
        try:
            (producer if what == "producer" else context).close()
        except Exception as error:  # noqa: BLE001 - the test looks at it
            refused.append(error)

    producer.send(text="a", completion=Completion(close, lambda *_: None))
    send_texts(producer, outcomes, 0, 2)
    wait_until(lambda: len(outcomes.sent) == 2)
    assert [type(error) for error in refused] == [IllegalStateException]
    assert f"{what.title()}.close was called by a completion listener" in str(refused[0])
    assert not producer.closed


# -- bounds ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("limits", "size"), [((4, 10**6), 1), ((100, 40), 10)], ids=["messages", "bytes"])
def test_send_waits_while_too_much_is_outstanding(context: Context, limits: tuple[int, int], size: int) -> None:
    """T11: best-effort flow control. A closed producer ends the wait."""
    outcomes, producer = Outcomes(), context.producer("orders")
    sender = asynchronous_sends_of(context)
    sender.max_messages, sender.max_bytes = limits
    hold = Hold(context)
    refused: list[Exception] = []

    def send_all() -> None:
        try:
            for _ in range(20):
                producer.send(text="x" * size, completion=outcomes)
        except ClosedError as error:
            refused.append(error)

    sending = in_thread(send_all)
    wait_until(lambda: sender.waiting_calls)
    assert producer.statistics().outstanding == 4
    closing = in_thread(producer.close)
    sending.join(LIMIT_S)
    hold.open()
    closing.join(LIMIT_S)
    assert len(refused) == 1
    assert len(outcomes.sent) == 4 == len(browse(context))
    with context.producer("orders") as other:
        other.send(body=b"y" * 100, completion=outcomes)  # larger than all the room
        for _ in range(20):
            other.send(text="x" * size, completion=outcomes)
    assert len(outcomes.sent) == 25 == len(browse(context))


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals reach the main thread")
def test_interrupt_ends_the_wait_for_room(context: Context) -> None:
    """T11: Ctrl-C; what was queued completes."""
    outcomes, producer, sender = Outcomes(), context.producer("orders"), asynchronous_sends_of(context)
    sender.max_messages = 2
    hold = Hold(context)
    main = threading.get_ident()

    def interrupt() -> None:
        wait_until(lambda: sender.waiting_calls and is_waiting(threading.main_thread()))
        # A thread that lost the processor inside Condition.wait, before it blocks, looks the same. An interrupt between its two
        # statements "release the lock" and "try" ends in a RuntimeError: Python's own gap.
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = in_thread(interrupt)
    with pytest.raises(KeyboardInterrupt):
        send_texts(producer, outcomes, 0, 5)
    interrupting.join(LIMIT_S)
    hold.open()
    producer.close()
    assert (outcomes.texts(), outcomes.failed) == (numbers(0, 2), [])


def test_interrupt_at_any_line_of_a_send_leaves_nothing_waiting() -> None:
    """T11: Ctrl-C; the message is sent and told, or neither, and closing ends."""
    code = AsynchronousSender.submit.__code__
    source, first = inspect.getsourcelines(AsynchronousSender.submit)
    # Python looks for signals after calls, so never at a `try:`, which belongs to no block yet.
    lines = [first + n for n, text in enumerate(source) if text.strip() != "try:"]
    interrupted = []
    with memory_domain(orders="queue") as root:
        for line in lines:
            context, outcomes = connect(root, housekeeping=False), Outcomes()
            producer = context.producer("orders")

            def trace(frame: FrameType, event: str, _: object, line: int = line) -> Any:
                if frame.f_code is not code:
                    return None
                if event == "line" and frame.f_lineno == line and line not in interrupted:
                    interrupted.append(line)
                    raise KeyboardInterrupt
                return trace

            before = sys.gettrace()
            sys.settrace(trace)
            try:
                send_texts(producer, outcomes, 0, 1)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            closing = in_thread(context.close)
            closing.join(LIMIT_S)
            assert not closing.is_alive(), f"line {line}"
            assert producer.statistics().outstanding == 0
            assert outcomes.texts() in ([], ["0"])
    assert len(interrupted) > 5


# -- processes ---------------------------------------------------------------------------------------------------------
_FORK = """
import os, sys
from spark_jms import apply, connect
from spark_jms.client import Completion
from spark_jms.errors import IllegalStateException
context = connect(sys.argv[1], housekeeping=False)
producer = context.producer("orders")
failed = []
listener = Completion(lambda m: None, lambda m, e: failed.append(e))
for n in range(200):
    producer.send(text=str(n), completion=listener)
child = os.fork()
if child == 0:
    try:
        producer.send(text="of the child", completion=listener)
    except IllegalStateException as error:
        producer.close()
        os._exit(7)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
producer.close()
print(len(failed), flush=True)
for n in range(3):
    context.producer("orders").send(text="perhaps", completion=listener)
"""  # and the interpreter exits without closing the context


def test_forked_child_and_exit_do_not_hang() -> None:
    """T11: the child has none of the parent's sends."""
    with memory_domain("file", orders="queue") as root:
        done = forked.run(
            [sys.executable, "-c", _FORK, root], capture_output=True, text=True, timeout=LIMIT_S, check=True
        )
        assert done.stdout.split() == ["7", "0"]
        with connect(root, housekeeping=False) as context:
            there = [message.text for message in browse(context)]
        assert there[:200] == numbers(0, 200)
        assert len(there) <= 203


_SENDS = """
import os, threading
from spark_jms.client import Completion
out = os.open(os.path.join(sys.argv[1], "completed"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
ready = threading.Event()
def completed(message):
    os.write(out, f"{message.text} {message.message_id}\\n".encode())
    if int(message.text) > 50:
        ready.set()
def send():
    producer, n = context.producer("orders"), 0
    while True:
        producer.send(text=str(n), completion=Completion(completed, lambda m, e: os.abort()))
        n += 1
threading.Thread(target=send, daemon=True).start()
ready.wait()
"""


def test_killed_client_has_sent_what_completed() -> None:
    """T11: kill -9. What had completed is there, once; the other messages are there once or not at all, in order."""
    with memory_domain("file", orders="queue") as root:
        with killed_client(root, _SENDS):
            wait_until(lambda: Path(root, "completed").read_bytes().count(b"\n") > 300, LIMIT_S)
        lines = Path(root, "completed").read_text().split("\n")[:-1]
        with connect(root, housekeeping=False) as context:
            there = {message.message_id: message.text for message in browse(context)}
    assert {line.split()[1]: line.split()[0] for line in lines}.items() <= there.items()
    assert list(there.values()) == numbers(0, len(there))


def sending_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "jmsq-asynchronous-sends"]


def test_completed_thread_ends_with_the_context() -> None:
    """T11: and a context without asynchronous sends has no such thread."""
    with memory_domain(orders="queue") as root:
        with connect(root, housekeeping=False) as context:
            context.producer("orders").send(text="blocking")
            assert not sending_threads()
            context.producer("orders").send(text="a", completion=Outcomes())
            assert sending_threads()
        assert not sending_threads()
