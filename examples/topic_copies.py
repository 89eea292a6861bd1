"""A partitioned distributed topic: one copy of each message per application, or one per instance of an application.

python examples/topic_copies.py           on one server, then on two, in temporary domains

Applications run as several instances. The client id of a connection decides which of them share a subscription. Its policy is
unrestricted: several instances may have the id, and an instance that restarts need not wait for its old connection to end.

It prints

    on one server: billing has 12, screen-1 has 12, screen-2 has 12 of 12 messages
    on two servers: billing has 12, screen-1 has 12, screen-2 has 12 of 12 messages
"""

from __future__ import annotations

import queue
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from spark_jms import apply, connect
from spark_jms.client import Message

ONE_SERVER = {"destinations": {"prices": {"kind": "distributed-topic", "members": 2}}}
TWO_SERVERS = {
    "servers": {"east": {"store": "file"}, "west": {"store": "file"}},
    "destinations": {"prices": {"kind": "distributed-topic", "servers": ["east", "west"]}},
}
INSTANCES = ("1", "2")
MESSAGES = 12


def run(module: Mapping[str, Any]) -> Counter[str]:
    """How many different messages each subscription received."""
    received: queue.Queue[tuple[str, str | None]] = queue.Queue()

    def listen(client_id: str, message: Message) -> None:
        received.put((client_id, message.text))

    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        apply(f"{folder}/domain", module)

        def start(client_id: str) -> None:
            instance = connect(f"{folder}/domain", client_id=client_id, client_id_policy="unrestricted")
            listener = partial(listen, client_id)
            stack.enter_context(instance).consumer(
                "prices", subscription="prices", listener=listener, acknowledge="auto"
            )

        for number in INSTANCES:
            start("billing")  # one copy per application: its instances share a subscription
            start(f"screen-{number}")  # one copy per instance: each has a subscription of its own
        with connect(f"{folder}/domain") as context, context.producer("prices") as producer:
            for n in range(MESSAGES):
                producer.send(text=f"price {n}")
        copies = {received.get(timeout=30) for _ in range(MESSAGES * (1 + len(INSTANCES)))}
    return Counter(client_id for client_id, _ in copies)


if __name__ == "__main__":
    for where, module in (("one server", ONE_SERVER), ("two servers", TWO_SERVERS)):
        copies = run(module)
        print(
            f"on {where}: {', '.join(f'{name} has {copies[name]}' for name in sorted(copies))} of {MESSAGES} messages"
        )
