"""A unit of work: several senders contribute to one order, and one consumer receives it as a whole.

python examples/client_unit_of_work.py     in a temporary domain

It prints

    complete: helmet 8 ['helmet', 'strap']
    the bicycle waits: None
    complete: bicycle 7 ['frame', 'wheels', 'bell']
"""

from __future__ import annotations

from spark_jms import connect
from spark_jms.testing import memory_domain

ORDERS = {"kind": "distributed-queue", "members": 2, "unit_of_work_handling_policy": "SingleMessageDelivery"}


def part(unit: str, number: int, *, end: bool = False) -> dict[str, str | int | bool]:
    return {
        "JMS_BEA_UnitOfWork": unit,
        "JMS_BEA_UnitOfWorkSequenceNumber": number,
        **({"JMS_BEA_IsUnitOfWorkEnd": True} if end else {}),
    }


def main() -> None:
    with memory_domain(orders=ORDERS) as root, connect(root) as context:
        warehouse, shop = context.producer("orders"), context.producer("orders")
        warehouse.send(text="wheels", properties=part("bicycle 7", 2))
        shop.send_unit_of_work([{"text": "helmet"}, {"text": "strap"}], "helmet 8")
        shop.send(text="bell", properties=part("bicycle 7", 3, end=True))
        with context.consumer("orders") as consumer:
            complete = consumer.receive(timeout=5)
            assert complete is not None
            print("complete:", complete.properties["JMS_BEA_UnitOfWork"], [each.text for each in complete.unit_of_work])
            complete.acknowledge()
            print("the bicycle waits:", consumer.receive(timeout=0))
            warehouse.send(text="frame", properties=part("bicycle 7", 1))
            complete = consumer.receive(timeout=5)
            assert complete is not None
            print("complete:", complete.properties["JMS_BEA_UnitOfWork"], [each.text for each in complete.unit_of_work])
            complete.acknowledge()


if __name__ == "__main__":
    main()
