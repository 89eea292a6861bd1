"""A promoted property: a column of the destination's table, whose statistics let a selector skip files.

python examples/client_promoted.py     in a temporary domain

It prints

    amount > 970: 31 messages, 'sent before' and 'a whole number' among them
    orders
    member  files  messages  files skipped  skipped  read  matching
    ─…
         0     12     1,002              9      900   102        31
    amount > 970: skips 900 message(s) by statistics
    columns read of the other files: amount, properties
    amount: read from its column for 100 message(s), from the properties for 2: their files were written before it was promoted, …
"""

from __future__ import annotations

import tempfile

from spark_jms import apply, connect
from spark_jms.cli.__main__ import cli

SELECTOR = "amount > 970"


def module(*promoted: str) -> dict[str, object]:
    return {"destinations": {"orders": {"kind": "queue", "promotedProperties": list(promoted)}}}


def main() -> None:
    with tempfile.TemporaryDirectory() as root:
        apply(root, module())
        with connect(root, housekeeping=False) as context:
            producer = context.producer("orders")
            producer.send(text="sent before", properties={"amount": 999.0})
            apply(root, module("amount:double"))  # even while jobs run
            for hundred in range(10):
                producer.send_many(
                    {"text": f"order {n}", "properties": {"amount": float(n)}}
                    for n in range(100 * hundred, 100 * hundred + 100)
                )
            producer.send(text="a whole number", properties={"amount": 1000})  # a long: found, but NULL in the column
            found = [message.text for message in context.browser("orders", selector=SELECTOR)]
            print(f"{SELECTOR}: {len(found)} messages, {found[0]!r} and {found[-1]!r} among them")
        cli(["explain", "--root", root, "orders", SELECTOR], standalone_mode=False)  # jmsq explain


if __name__ == "__main__":
    main()
