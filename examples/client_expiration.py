"""Expired messages: one is logged, one goes to the error destination.

python examples/client_expiration.py     in a temporary domain

It prints

    logged: <ExpiredJMSMessage JMSMessageID=… > <UserProperties item='tulips' /> </ExpiredJMSMessage>
    late has: a bid for roses, expired in bids
    expired: bids 1, quotes 1
"""

from __future__ import annotations

import logging
import re
import tempfile

from spark_jms import admin as administration
from spark_jms import apply, connect

MODULE = {
    "expirationScanInterval": "30 s",  # the default
    "destinations": {
        "quotes": {"kind": "queue", "expirationPolicy": "Log", "expirationLoggingPolicy": "%properties%"},
        "bids": {"kind": "queue", "expirationPolicy": "Redirect", "errorDestination": "late"},
        "late": {"kind": "queue"},
    },
}


class OnOneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print("logged:", re.sub(r"'ID:[^']*'", "…", " ".join(record.getMessage().split())))


def search(root: str) -> dict[str, int]:
    """What the process with the housekeeping does every `expirationScanInterval`, as `jmsq housekeep --once` does it; until
    both have expired. Returns the counts that `jmsq stat` shows."""
    counts: dict[str, int] = {}
    with administration.connect(root) as admin:
        while sum(counts.values()) < 2:
            admin.housekeep("bids", "quotes")
            counts = {name: admin.statistics(name).expired for name in ("bids", "quotes")}
    return counts


def main() -> None:
    told = logging.getLogger("spark_jms.expiration")
    told.addHandler(handler := OnOneLine())
    told.propagate = False
    with tempfile.TemporaryDirectory() as root:
        apply(root, MODULE)
        with connect(root, housekeeping=False) as context:
            context.producer("quotes").send(text="0.75", properties={"item": "tulips"}, time_to_live="50 ms")
            context.producer("bids").send(text="a bid for roses", time_to_live="50 ms")
            counts = search(root)
            late = context.consumer("late").receive(timeout=5)
            assert late is not None
            print(f"late has: {late.text}, expired in {late.properties['JMS_JMSQ_ErrorFrom']}")
            print("expired:", ", ".join(f"{name} {count}" for name, count in counts.items()))
    told.removeHandler(handler)
    told.propagate = True


if __name__ == "__main__":
    main()
