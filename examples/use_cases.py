"""The use cases of distributed destinations: paired and balanced queues, topics, and messages that are forwarded.

python examples/use_cases.py            in a temporary domain

It prints

    paired: the consumer on d1 received ['d1 0', 'd1 1', 'd1 2']
    paired: the consumer on d2 received ['d2 0', 'd2 1', 'd2 2']
    balanced: d1 received 3 of 6
    balanced: d2 received 3 of 6
    topic: the consumer on d1 received ['price 1 of d1', 'price 1 of d2', 'price 2 of d1', 'price 2 of d2']
    topic: the consumer on d2 received ['price 1 of d1', 'price 1 of d2', 'price 2 of d1', 'price 2 of d2']
    forwarding: at first the consumer on d2 receives None
    forwarding: then it receives ['invoice 0', 'invoice 1', 'invoice 2']
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack

from spark_jms import apply, connect
from spark_jms.client import ConnectionFactory, Consumer, Context

MODULE = {
    "servers": {"d1": {"store": "file"}, "d2": {"store": "file"}},
    "destinations": {
        "orders": {"kind": "distributed-queue", "servers": ["d1", "d2"]},
        "prices": {"kind": "distributed-topic", "servers": ["d1", "d2"], "forwarding": "replicated"},
        "invoices": {"kind": "distributed-queue", "servers": ["d1", "d2"], "forwardDelay": "1 s"},
    },
}


def receive(consumer: Consumer, count: int) -> list[str]:
    """So many messages."""
    messages = [consumer.receive(timeout="30 s") for _ in range(count)]
    return sorted(message.text or "" for message in messages if message)


def paired(root: str) -> None:
    """Each application has a producer and a consumer on the member of its own server, so no message waits for another
    application. `server` is the home server, which both prefer: affinity."""
    pairs = ConnectionFactory(load_balancing_enabled=False, pin_receivers=True)
    for server in ("d1", "d2"):
        with connect(root, connection_factory=pairs, server=server) as application:
            application.producer("orders").send_many({"text": f"{server} {n}"} for n in range(3))
            with application.consumer("orders", acknowledge="auto") as consumer:
                print(f"paired: the consumer on {server} received {receive(consumer, 3)}")


def balanced(context: Context) -> None:
    """One producer, whose messages go to both members in turn; a consumer on each takes its part."""
    producer = context.producer("orders")
    for n in range(6):
        producer.send(text=f"order {n}")
    for server in ("d1", "d2"):
        with context.consumer(f"{server}@orders", acknowledge="auto") as consumer:
            print(f"balanced: {server} received {len(receive(consumer, 3))} of 6")


def distributed_topic(root: str) -> None:
    """A producer and a consumer on each member of a topic: each consumer receives what both producers send. Without `forwarding` it
    would do so too, but then a consumer depends on both servers."""
    with ExitStack() as stack:
        applications = {server: stack.enter_context(connect(root, server=server)) for server in ("d1", "d2")}
        consumers = {
            server: stack.enter_context(application.consumer(f"{server}@prices", acknowledge="auto"))
            for server, application in applications.items()
        }
        for server, application in applications.items():
            application.producer(f"{server}@prices").send_many({"text": f"price {n} of {server}"} for n in (1, 2))
        for server, consumer in consumers.items():
            print(f"topic: the consumer on {server} received {receive(consumer, 4)}")


def forwarded(context: Context) -> None:
    """A producer on d1 and a consumer on d2: housekeeping brings messages to the consumer that wait on d1 for a second."""
    with context.consumer("d2@invoices", acknowledge="auto") as consumer:
        context.producer("d1@invoices").send_many({"text": f"invoice {n}"} for n in range(3))
        print(f"forwarding: at first the consumer on d2 receives {consumer.receive(timeout=0)}")
        print(f"forwarding: then it receives {receive(consumer, 3)}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/domain"
        apply(root, MODULE)
        paired(root)
        with connect(root) as context:
            balanced(context)
            distributed_topic(root)
            forwarded(context)


if __name__ == "__main__":
    main()
