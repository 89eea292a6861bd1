"""A transacted session: each received order becomes an invoice and a delivery, or none of the three happens.

python examples/client_transaction.py            in a temporary domain

It prints

    No a unicorn: back to the queue, and its invoice is not sent
    orders: empty
    invoices: invoice for tea, invoice for a unicorn, invoice for milk
    deliveries: delivery of tea, delivery of a unicorn, delivery of milk
"""

from __future__ import annotations

from spark_jms import connect
from spark_jms.testing import memory_domain


def main() -> None:
    with memory_domain(orders="queue", invoices="queue", deliveries="queue") as root, connect(root) as context:
        context.producer("orders").send_many([{"text": "tea"}, {"text": "a unicorn"}, {"text": "milk"}])
        with context.transacted_session(timeout="1 min") as session:
            invoices, deliveries = session.producer("invoices"), session.producer("deliveries")
            for order in session.consumer("orders").messages(idle_timeout="1 s"):
                invoices.send(text=f"invoice for {order.text}")
                if order.text == "a unicorn" and order.delivery_count == 1:
                    print(f"No {order.text}: back to the queue, and its invoice is not sent")
                    session.rollback()
                    continue
                deliveries.send(text=f"delivery of {order.text}")
                session.commit()
        for destination in ("orders", "invoices", "deliveries"):
            print(
                f"{destination}: {', '.join(str(message.text) for message in context.browser(destination)) or 'empty'}"
            )


if __name__ == "__main__":
    main()
