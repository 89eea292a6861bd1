"""A durable subscription that is dropped and made again under its name (C10, C14)."""

from __future__ import annotations

from spark_jms import connect
from spark_jms.admin.subscriptions import drop_subscription, droppable_subscription
from spark_jms.claims import views
from spark_jms.log.domain import Domain
from spark_jms.testing.domain import memory_domain


def receive_all(root: str, count: int) -> list[str | None]:
    with connect(root, housekeeping=False) as context:
        context.producer("prices").send_many({"text": f"m{i}"} for i in range(count))
        consumer = context.consumer("prices", subscription="s", starting_position="earliest")
        got = []
        for _ in range(count):
            message = consumer.receive(timeout_s=10)
            assert message is not None
            got.append(message.text)
            message.acknowledge()
        consumer.close()
    return got


def test_recreated_subscription_writes_its_acknowledgements() -> None:
    """C14: the table keeps a position for each subscription; rows of the new one are not taken for those of the old one."""
    with memory_domain(prices="topic") as root:
        receive_all(root, 3)
        domain = Domain(root)
        with views.opened_store(domain) as store:
            rows = droppable_subscription(domain, store, "prices", "s")
            assert sum(row.backlog for row in rows) == 0
            drop_subscription(domain, store, rows, 5)
        assert receive_all(root, 2) == ["m0", "m1"]
        table = Domain(root).acknowledgements("prices").refresh()
        assert sum(f.rows for f in table.member_files(0).files) == 3 + 2
