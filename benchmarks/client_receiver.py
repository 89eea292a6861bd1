"""The receiving process of the client's latency: `python -m benchmarks.client_receiver ROOT|PORT/QUEUE COUNT`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator

from benchmarks.latency import PRIME

TIMEOUT_S = 60.0


def main(where: str, count: int) -> None:
    port, slash, queue = where.partition("/")
    got: list[tuple[int, float]] = []
    with _artemis(int(port), queue) if slash and port.isdigit() else _jmsq(where) as receive:
        while len(got) < count:
            body = receive()
            due = int(body.split(b" ", 1)[0])
            if due == PRIME:
                print("ready", flush=True)
            else:
                got.append((due, (time.time_ns() - due) / 1e6))
    print(json.dumps(got), flush=True)


@contextlib.contextmanager
def _jmsq(root: str) -> Iterator[Callable[[], bytes]]:
    import spark_jms

    with spark_jms.connect(root, housekeeping=False) as context, context.consumer("plain") as consumer:
        last = []

        def receive() -> bytes:
            while last:
                last.pop().acknowledge()
            message = consumer.receive(timeout=TIMEOUT_S)
            if message is None or message.body is None:
                raise SystemExit("no message came")
            last.append(message)
            return message.body

        yield receive
        while last:
            last.pop().acknowledge()


@contextlib.contextmanager
def _artemis(port: int, queue: str) -> Iterator[Callable[[], bytes]]:
    from benchmarks.peers.artemis import ArtemisClient

    client = ArtemisClient(port, queue)
    client.subscribe()
    last = []

    def receive() -> bytes:
        while last:
            client.acknowledge(last.pop())
        frame = client.messages.get(timeout=TIMEOUT_S)
        last.append(frame)
        return frame.body if isinstance(frame.body, bytes) else frame.body.encode()

    yield receive
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
