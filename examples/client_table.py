"""Many messages at once without Spark: send an Arrow table, each row a message.

python examples/client_table.py            in a temporary domain
JMSQ_ROOT=/data/domain python examples/client_table.py   in your domain, which needs a queue named orders

It prints

    Sent 100,000 messages in … s, in 1 commit
      99995  order 99994  {'amount': 149991.0}
      99996  order 99995  {'amount': 149992.5}
      99997  order 99996  {'amount': 149994.0}
"""

from __future__ import annotations

import os
import time
from contextlib import nullcontext

import pyarrow as pa

from spark_jms import connect
from spark_jms.testing import memory_domain

ROWS = 100_000


def main() -> None:
    yours = os.environ.get("JMSQ_ROOT")
    amounts = pa.array([n * 1.5 for n in range(ROWS)])
    table = pa.table(
        {
            "text": [f"order {n}" for n in range(ROWS)],
            "properties": pa.StructArray.from_arrays([amounts], ["amount"]),
        }
    )
    with nullcontext(yours) if yours else memory_domain(orders="queue") as root, connect(root) as context:
        started = time.perf_counter()
        report = context.producer("orders").send_table(table)
        print(f"Sent {report.messages:,} messages in {time.perf_counter() - started:.2f} s, in {report.commits} commit")
        for message in context.browser("orders", selector="amount > 149990", limit=3):
            print(f"  {message.sequence}  {message.text}  {dict(message.properties)}")


if __name__ == "__main__":
    main()
