"""The life-cycle log: what became of each message.

python examples/client_life_cycle.py     in a temporary domain

It prints

    message 1: sent, claimed, acknowledged
    message 2: sent, claimed, released, claimed, acknowledged
    message 3: sent, expired
    message 4: sent, claimed, acknowledged
    Life cycle of orders
    happened       event         subscription  member  messages  ranges  consumer  claim  detail
    ─…
    …Z             sent          –                  0         1  1       –         –      –
    …Z             sent          –                  0         1  2       –         –      –
    …Z             sent          –                  0         1  3       –         –      –
    …Z             sent          –                  0         1  4       –         –      –
    …Z             claimed       -                  0         1  1       client-…  1-…    –
    …Z             acknowledged  -                  0         1  1       client-…  1-…    –
    …Z             claimed       -                  0         1  2       client-…  1-…    –
    …Z             released      -                  0         1  2       client-…  1-…    may have been delivered
    …Z             claimed       -                  0         1  2       client-…  1-…    –
    …Z             acknowledged  -                  0         1  2       client-…  1-…    –
    …Z             expired       -                  0         1  3       –         –      –
    …Z             claimed       -                  0         1  4       client-…  1-…    –
    …Z             acknowledged  -                  0         1  4       client-…  1-…    –
"""

from __future__ import annotations

import tempfile

from spark_jms import admin as administration
from spark_jms import apply, connect
from spark_jms.cli.__main__ import cli

MODULE = {"destinations": {"orders": {"kind": "queue", "messageLoggingEnabled": True}}}


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        apply(root, MODULE)
        with connect(root) as context:
            producer = context.producer("orders")
            producer.send(text="paid")
            producer.send(text="rejected once")
            producer.send(text="expires", time_to_live="1 ms")
            producer.send(text="the last one")
            with context.consumer("orders", prefetch=1) as consumer:
                for reject in (False, True, False, False):
                    message = consumer.receive(timeout="10 s")
                    assert message is not None
                    if reject:
                        message.reject()
                    else:
                        message.acknowledge()
        with administration.connect(root) as admin:
            rows = admin.events("orders")
        for sequence in (1, 2, 3, 4):
            print(f"message {sequence}: {', '.join(row.event for row in rows if row.names(sequence))}")
        cli(["events", "--root", root, "orders"], standalone_mode=False)  # jmsq events


if __name__ == "__main__":
    main()
