"""The change feed: what happened to messages, for a program that continues where it ended.

python examples/client_changes.py     in a temporary domain

It prints

    sent      orders 1-2
    sent      orders 3
    expired   orders 3 (discard)
    finished  orders 1
    finished  orders 2
    then, in another process:
    sent      orders 4
    sent      returns 1
    moved     orders 4 (returns)
"""

from __future__ import annotations

import tempfile

from spark_jms import admin as administration
from spark_jms import apply, connect

KEPT = {"kind": "queue", "retention": "1 h"}  # a reader that comes later finds them gone
MODULE = {"destinations": {"orders": KEPT, "returns": KEPT}}


def work(root: str) -> None:
    with connect(root) as context:
        context.producer("orders").send_many([{"text": "a"}, {"text": "b"}, {"text": "late", "time_to_live": "1 ms"}])
        with context.consumer("orders", acknowledge="individual") as consumer:
            while (message := consumer.receive(timeout="1 s")) is not None:
                message.acknowledge()


def move(root: str) -> None:
    with connect(root) as context:
        context.producer("orders").send(text="wrong queue")
    with administration.connect(root) as admin:
        admin.move("orders", "returns")


def told(root: str, destination: str | None, since: str) -> str:
    """Print what has happened since; returns where to continue."""
    with connect(root) as context:
        feed = context.changes(destination, since)
        for change in feed:
            numbers = str(change.first) if change.first == change.last else f"{change.first}-{change.last}"
            detail = f" ({change.detail})" if change.detail else ""
            print(f"{change.kind:<9} {change.destination} {numbers}{detail}")
        return feed.position


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        apply(root, MODULE)
        work(root)
        position = told(root, None, "earliest")
        move(root)
        print("then, in another process:")
        told(root, None, position)


if __name__ == "__main__":
    main()
