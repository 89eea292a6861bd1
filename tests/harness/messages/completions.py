"""What tests of asynchronous sends share: a listener that remembers, commits that wait (T11)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from spark_jms import connect
from spark_jms.client import Context, Message, Producer
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of
from tests.harness.domains.hooked_storage import HookedStorage

LIMIT_S = 30
FOUR = {"kind": "distributed-queue", "members": 4}
UNITS = {"kind": "queue", "default_unit_of_order": "(SystemGenerated)"}


class Outcomes:
    """A listener that keeps what it is called with."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.failed: list[tuple[str | None, Exception]] = []
        self.threads: set[threading.Thread] = set()

    def on_completion(self, message: Message, /) -> None:
        self.threads.add(threading.current_thread())
        self.sent.append(message)

    def on_exception(self, message: Message, error: Exception, /) -> None:
        self.threads.add(threading.current_thread())
        self.failed.append((message.text, error))

    def texts(self) -> list[str | None]:
        return [message.text for message in self.sent]


class Hold:
    """Commits of a destination wait until `open`."""

    def __init__(self, context: Context, destination: str = "orders") -> None:
        log = domain_of(context).log(destination)
        self._held, self._open, self._log, self._storage = threading.Event(), threading.Event(), log, log.storage
        log.storage = HookedStorage(log.storage.uri, self._hook)

    def _hook(self, step: str, path: str) -> None:
        if step == "before create" and path.startswith("_delta_log/") and path.endswith(".json"):
            self._held.set()
            assert self._open.wait(LIMIT_S)

    def wait_until_held(self) -> None:
        assert self._held.wait(LIMIT_S)

    def open(self) -> None:
        self._open.set()
        self._log.storage = self._storage


@contextlib.contextmanager
def opened_domain() -> Iterator[Context]:
    with (
        memory_domain(
            orders="queue", spread=FOUR, units=UNITS, small={"kind": "queue", "max_message_bytes": 10}
        ) as root,
        connect(root, housekeeping=False) as opened,
    ):
        yield opened


def browse(context: Context, destination: str = "orders") -> list[Message]:
    return list(context.browser(destination))


def texts(context: Context) -> list[str | None]:
    return [message.text for message in browse(context)]


def send_texts(producer: Producer, outcomes: Outcomes, first: int, end: int) -> None:
    for number in range(first, end):
        producer.send(text=str(number), completion=outcomes)


def numbers(first: int, end: int) -> list[str]:
    return [str(number) for number in range(first, end)]


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread
