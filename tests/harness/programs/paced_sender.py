"""`python -m tests.harness.programs.paced_sender ROOT PER_S`: sends so many messages a second to `orders` until its input ends.

The property `ns` is when the message was sent, of the machine's monotonic clock.
"""

from __future__ import annotations

import sys
import threading
import time

from spark_jms import connect


def main(root: str, per_s: int) -> None:
    over = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    begun, sent = time.monotonic(), 0
    with connect(root, housekeeping=False) as context, context.producer("orders") as producer:
        while not over.wait(max(begun + sent / per_s - time.monotonic(), 0)):
            producer.send(text="live", properties={"ns": time.monotonic_ns()})
            sent += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
