"""The first message without Spark: send, browse, receive, acknowledge.

python examples/client_hello.py            in a temporary domain
JMSQ_ROOT=/data/domain python examples/client_hello.py   in your domain, which needs a queue named orders

It prints

    In the queue:
      0/1  hello  {'color': 'red', 'amount': 12.5}
      0/2  {'item': 'lamp', 'pieces': 2, 'picture': b'\\x89PNG'}  {'color': 'blue'}
      0/3  order 0  {}
      0/4  order 1  {}
      0/5  order 2  {}
    Received 'hello', delivery 1, group customer-7
    Left for others: 4
"""

from __future__ import annotations

import os
from contextlib import nullcontext

from spark_jms import connect
from spark_jms.testing import memory_domain


def main() -> None:
    yours = os.environ.get("JMSQ_ROOT")
    with nullcontext(yours) if yours else memory_domain(orders="queue") as root, connect(root) as context:
        producer = context.producer("orders")
        producer.send(text="hello", properties={"color": "red", "amount": 12.5}, group_id="customer-7")
        producer.send(map={"item": "lamp", "pieces": 2, "picture": b"\x89PNG"}, properties={"color": "blue"})
        producer.send_many({"text": f"order {n}", "priority": n % 10} for n in range(3))

        print("In the queue:")
        for message in context.browser("orders"):
            print(f"  {message.member}/{message.sequence}  {message.text or message.map}  {dict(message.properties)}")

        with context.consumer("orders", selector="color = 'red' AND amount > 10") as consumer:
            message = consumer.receive(timeout=5)
            if message is not None:
                print(f"Received {message.text!r}, delivery {message.delivery_count}, group {message.group_id}")
                message.acknowledge()
        print(f"Left for others: {len(list(context.browser('orders')))}")


if __name__ == "__main__":
    main()
