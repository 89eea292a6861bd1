"""A queue on two servers, each with its own store: while one is away, the other continues, and nothing is lost.

python examples/servers.py            in a temporary domain

It prints

    sent to the members [0, 1]
    without west: 2 of 4 orders
    west is back: the other 2
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from spark_jms import apply, connect

MODULE = {
    "servers": {"east": {"store": "file"}, "west": {"store": "file"}},
    "destinations": {"orders": {"kind": "distributed-queue", "servers": ["east", "west"]}},
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = f"{folder}/domain"
        apply(root, MODULE)
        stores = Path(root) / "_jmsq" / "stores"
        with connect(root) as context:
            producer = context.producer("orders")
            sent = {producer.send(text=f"order {n}").member for n in range(4)}
            print(f"sent to the members {sorted(sent)}")
            (stores / "west").rename(stores / "gone")  # as if the disk with this store were unmounted
            with context.consumer("orders", acknowledge="auto") as consumer:
                texts = {message.text for message in consumer.messages(idle_timeout="1 s")}
                print(f"without west: {len(texts)} of 4 orders")
                (stores / "gone").rename(stores / "west")
                others = {message.text for message in consumer.messages(idle_timeout="8 s")}
                print(f"west is back: the other {len(others - texts)}")


if __name__ == "__main__":
    main()
