"""Consumers of one queue, in one process: `python -m benchmarks.competing_consumers ROOT|PORT/QUEUE COUNT BATCH HANDLER_MS WINDOW_S`.

COUNT threads, each with a consumer of its own, receive BATCH messages one after the other, work HANDLER_MS on each, and acknowledge
them together. Prints `ready` when all consumers have received and acknowledged a message, and begins when it reads a time. What it has
seen from that time on it prints as JSON: the messages, the longest time in which one of the consumers got none, and the processor time
of the process. What comes before is warm-up.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

TIMEOUT_S = 180.0
QUEUE = "plain"

Receive = Callable[[int], Callable[[], object]]
"""Receives one message; with the number of those received since the last acknowledgement. Returns the call that acknowledges all."""


def main(where: str, count: int, batch: int, handler_s: float, window_s: float) -> None:
    counts, gaps = [0] * count, [0.0] * count
    errors: list[BaseException] = []
    ready, begin = threading.Barrier(count + 1), threading.Event()
    starts_s = ends_s = 0.0

    def consume(number: int) -> None:
        try:
            with _consumer(where, batch) as receive:
                receive(0)()
                ready.wait(TIMEOUT_S)
                begin.wait(TIMEOUT_S)
                last_s = time.monotonic()
                while last_s < ends_s:
                    seen = 0
                    for place in range(batch):
                        acknowledge = receive(place)
                        now_s = time.monotonic()
                        gaps[number], last_s = max(gaps[number], now_s - max(last_s, starts_s)), now_s
                        seen += now_s >= starts_s
                        time.sleep(handler_s)
                    acknowledge()
                    counts[number] += seen
        except BaseException as error:  # noqa: BLE001 - named below, by the process
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(threading.BrokenBarrierError):
        ready.wait(TIMEOUT_S)
        print("ready", flush=True)
        starts_s = float(sys.stdin.readline())
        ends_s = starts_s + window_s
        begin.set()
        time.sleep(max(starts_s - time.monotonic(), 0.0))
        used_s = time.process_time()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    took_s = time.monotonic() - starts_s
    print(
        json.dumps({"counts": counts, "gap": max(gaps), "took": took_s, "cpu": time.process_time() - used_s}),
        flush=True,
    )


@contextlib.contextmanager
def _consumer(where: str, batch: int) -> Iterator[Receive]:
    port, slash, queue = where.partition("/")
    if slash and port.isdigit():
        with _artemis(int(port), queue) as receive:
            yield receive
    else:
        mode: Any = "auto" if batch == 1 else "client"
        with _context(where) as context, context.consumer(QUEUE, prefetch=batch, acknowledge=mode) as consumer:

            def receive_ours(place: int) -> Callable[[], object]:
                message = consumer.receive(timeout=TIMEOUT_S)
                if message is None:
                    raise SystemExit("no message came")
                return message.acknowledge  # and all before it; in the mode auto the next receive does it

            yield receive_ours


_lock = threading.Lock()
_contexts: dict[str, Any] = {}


@contextlib.contextmanager
def _context(root: str) -> Iterator[Any]:
    """One for all threads, as an application has it; it ends with the process."""
    import spark_jms

    with _lock:
        if root not in _contexts:
            _contexts[root] = spark_jms.connect(root)
    yield _contexts[root]


@contextlib.contextmanager
def _artemis(port: int, queue: str) -> Iterator[Receive]:
    from benchmarks.peers.artemis import ArtemisClient

    client = ArtemisClient(port, queue)
    client.subscribe()
    frames: list[Any] = []

    def acknowledge() -> None:
        while frames:
            client.acknowledge(frames.pop())

    def receive(place: int) -> Callable[[], object]:
        frames.append(client.messages.get(timeout=TIMEOUT_S))
        return acknowledge

    yield receive
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]) / 1000, float(sys.argv[5]))
