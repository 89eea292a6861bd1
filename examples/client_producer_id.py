"""An idempotent producer: a loader dies in the middle and restarts, and each line is sent once.

python examples/client_producer_id.py

It prints

    the table has 0 lines of loader-1
    the loader has died
    the table has 7 lines of loader-1
    3 sent, 7 were sent before
    10 lines in the queue
"""

from __future__ import annotations

from spark_jms import connect
from spark_jms.testing import memory_domain

LINES = [f"order {number}" for number in range(1, 11)]


class PowerCut(Exception):
    """The loader's process ends here."""


def load(root: str, fails_at: int | None) -> None:
    with connect(root) as context:
        producer = context.producer("orders", producer_id="loader-1")
        print(f"the table has {producer.last_sequence} lines of loader-1")
        for number, line in enumerate(LINES, 1):
            if number == fails_at:
                raise PowerCut
            producer.send(text=line, sequence=number)  # a number that the table has is not sent again
        counts = producer.statistics()
        print(f"{counts.messages} sent, {counts.duplicates} were sent before")


def main() -> None:
    with memory_domain(orders="queue") as root:
        try:
            load(root, fails_at=8)
        except PowerCut:
            print("the loader has died")
        load(root, fails_at=None)
        with connect(root) as context:
            print(f"{sum(1 for _ in context.browser('orders'))} lines in the queue")


if __name__ == "__main__":
    main()
