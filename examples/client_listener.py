"""Message listeners: two consumers share a queue; one message fails once and is delivered again, flagged.

python examples/client_listener.py

It prints

    told: RuntimeError('the database was away for a moment'); the message comes again
    20 orders were handled, each once, by two consumers
"""

from __future__ import annotations

import threading

from spark_jms import connect
from spark_jms.client import Message
from spark_jms.testing import memory_domain

ORDERS = 20


def main() -> None:
    handled: dict[str, list[str | None]] = {"one": [], "two": []}
    all_done = threading.Event()

    def service(name: str, message: Message) -> None:
        if message.text == "order 3" and not message.redelivered:
            raise RuntimeError("the database was away for a moment")
        handled[name].append(message.text)
        if sum(map(len, handled.values())) == ORDERS:
            all_done.set()

    def complain(error: Exception) -> None:
        print(f"told: {error!r}; the message comes again")

    with memory_domain(orders={"kind": "distributed-queue", "members": 2}) as root, connect(root) as context:
        for name in handled:
            context.consumer(
                "orders",
                acknowledge="auto",
                prefetch=2,
                exception_listener=complain,
                listener=lambda message, name=name: service(name, message),  # type: ignore[misc]
            )
        with context.producer("orders") as producer:
            for n in range(ORDERS):
                producer.send(text=f"order {n}")
        if not all_done.wait(timeout=30):
            raise SystemExit("not all orders were handled within 30 s")
        different = set(handled["one"] + handled["two"])
        print(f"{len(different)} orders were handled, each once, by two consumers")


if __name__ == "__main__":
    main()
