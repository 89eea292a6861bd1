"""Asynchronous sends: one thread sends 1,000 orders, and a completion listener is called with the outcome of each.

python examples/client_asynchronous.py

It prints

    1001 characters were refused: MessageSizeError
    999 sent, 1 refused, in few commits
"""

from __future__ import annotations

from spark_jms import connect
from spark_jms.client import Message
from spark_jms.testing import memory_domain

ORDERS = 1000


class Outcomes:
    """The context calls it, in the order of the sends."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.refused = 0

    def on_completion(self, message: Message, /) -> None:
        self.sent.append(message.message_id)

    def on_exception(self, message: Message, error: Exception, /) -> None:
        self.refused += 1
        print(f"{len(message.text or '')} characters were refused: {type(error).__name__}")


def main() -> None:
    outcomes = Outcomes()
    with memory_domain(orders={"kind": "queue", "max_message_bytes": 1000}) as root, connect(root) as context:
        with context.producer("orders") as producer:
            for number in range(ORDERS):
                producer.send(text="x" * 1001 if number == 500 else f"order {number}", completion=outcomes)
        # The end of the block has waited for all completions.
        commits = producer.statistics().commits
        print(f"{len(outcomes.sent)} sent, {outcomes.refused} refused, in {'few' if commits < 100 else 'many'} commits")


if __name__ == "__main__":
    main()
