"""An application that dies while it handles the message `killer`, in one of the ways to receive. Used by test_innocent_neighbours.py.

`python -m tests.harness.programs.dying_application ROOT JOURNAL WAY`. It writes a line for each message before it handles it,
and ends when no message has come for a while."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import spark_jms
from spark_jms import aio

IDLE_S = 0.7
KILLER = "killer"


class Journal:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def shows(self, *messages: Any) -> None:
        """The application has them from now on; the killer is its last."""
        texts = [str(message.text) for message in messages]
        with self._path.open("a") as file:
            for message in messages:
                file.write(f"{message.text} {message.delivery_count}\n")
        if KILLER in texts:
            os.kill(os.getpid(), signal.SIGKILL)


def parts(message: Any) -> Iterable[Any]:
    return message.unit_of_work or (message,)


def one_by_one(root: str, journal: Journal, **options: Any) -> None:
    """Acknowledges each message as the mode wants it."""
    with spark_jms.connect(root, housekeeping=False) as context, context.consumer("orders", **options) as consumer:
        while (message := consumer.receive(timeout=IDLE_S)) is not None:
            journal.shows(*parts(message))
            message.acknowledge()


def collected(root: str, journal: Journal) -> None:
    """Collects five messages before it acknowledges them together."""
    with (
        spark_jms.connect(root, housekeeping=False) as context,
        context.consumer("orders", acknowledge="client") as consumer,
    ):
        held: list[Any] = []
        while True:
            message = consumer.receive(timeout=IDLE_S)
            if message is not None:
                journal.shows(message)
                held.append(message)
            if held and (message is None or len(held) == 5):
                held[-1].acknowledge()
                held = []
            if message is None:
                return


def transacted(root: str, journal: Journal) -> None:
    """Three messages a transaction, each with a result."""
    with spark_jms.connect(root, housekeeping=False) as context, context.transacted_session() as session:
        consumer, results, count = session.consumer("orders"), session.producer("results"), 0
        while (message := consumer.receive(timeout=IDLE_S)) is not None:
            journal.shows(message)
            results.send(text=message.text)
            count += 1
            if count % 3 == 0:
                session.commit()
        session.commit()


def listening(root: str, journal: Journal) -> None:
    newest = [time.monotonic()]
    ended = threading.Event()

    def listener(message: Any) -> None:
        journal.shows(message)
        newest[0] = time.monotonic()

    with spark_jms.connect(root, housekeeping=False) as context:
        consumer = context.consumer("orders", acknowledge="auto", listener=listener)
        while time.monotonic() - newest[0] < IDLE_S:
            ended.wait(0.05)
        consumer.close()


def pooled(root: str, journal: Journal) -> None:
    """A block of the pool for each two messages."""
    with spark_jms.connect_pool(root, housekeeping=False) as pool:
        message: Any = True
        while message is not None:
            with pool.consumer("orders", acknowledge="individual") as consumer:
                for _ in range(2):
                    message = consumer.receive(timeout=IDLE_S)
                    if message is not None:
                        journal.shows(message)
                        message.acknowledge()


def asynchronous(root: str, journal: Journal) -> None:
    async def main() -> None:
        async with (
            aio.connect(root, housekeeping=False) as context,
            context.consumer("orders", acknowledge="individual") as consumer,
        ):
            while (message := await consumer.receive(timeout=IDLE_S)) is not None:
                journal.shows(message)
                await message.acknowledge()

    asyncio.run(main())


WAYS: dict[str, Callable[[str, Journal], None]] = {
    "individual": lambda root, journal: one_by_one(root, journal, acknowledge="individual"),
    "auto": lambda root, journal: one_by_one(root, journal, acknowledge="auto"),
    "dups-ok": lambda root, journal: one_by_one(root, journal, acknowledge="dups-ok"),
    "pinned": lambda root, journal: one_by_one(root, journal, acknowledge="individual", pin=True),
    "client": collected,
    "transaction": transacted,
    "listener": listening,
    "pool": pooled,
    "asyncio": asynchronous,
}

if __name__ == "__main__":
    WAYS[sys.argv[3]](sys.argv[1], Journal(sys.argv[2]))
