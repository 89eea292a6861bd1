"""A durable subscription that is dropped and made again under its name (C10, C14)."""

from __future__ import annotations

import pytest

from spark_jms import connect
from spark_jms.claims.servers import stores
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.claims.upkeep.views import drop_subscription, droppable_subscription
from spark_jms.log.destinations import declarations as durable
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import memory_domain
from spark_jms.testing.inside import domain_of, records_of


def receive_all(root: str, count: int) -> list[str | None]:
    with connect(root, housekeeping=False) as context:
        context.producer("prices").send_many({"text": f"m{i}"} for i in range(count))
        consumer = context.consumer("prices", subscription="s", starting_position="earliest")
        got = []
        for _ in range(count):
            message = consumer.receive(timeout=10)
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


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("step", ["before the first", "between", "after the last"])
def test_interrupted_drop_loses_no_message_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """C10: killed at any step of a drop, a new subscription of the name, made at once or after a repeated drop, starts at
    the earliest message."""
    with memory_domain(prices={"kind": "topic", "retention_ms": 3_600_000}) as root:
        receive_all(root, 3)
        domain = Domain(root)

        def killed(*arguments: object) -> None:
            raise Killed

        with views.opened_store(domain) as store:
            rows = droppable_subscription(domain, store, "prices", "s")
            whole_drop = durable.drop_subscription
            whole_clear = stores.opened_records
            if step == "before the first":
                monkeypatch.setattr(views, "opened_records", killed)
            elif step == "between":
                monkeypatch.setattr(durable, "drop_subscription", killed)
            else:
                monkeypatch.setattr(durable, "drop_subscription", lambda *a: (whole_drop(*a), killed()))
            with pytest.raises(Killed):
                drop_subscription(domain, store, rows, 5)
            monkeypatch.setattr(durable, "drop_subscription", whole_drop)
            monkeypatch.setattr(views, "opened_records", whole_clear)
            if step != "after the last":
                drop_subscription(domain, store, droppable_subscription(domain, store, "prices", "s"), 5)
        assert "s" not in Domain(root).log("prices").refresh().destination.subscriptions
        with connect(root, housekeeping=False) as context:
            consumer = context.consumer("prices", subscription="s", starting_position="earliest")
            assert [m.text for m in iter(lambda: consumer.receive(timeout=0), None)] == ["m0", "m1", "m2"]


def test_housekeeping_clears_positions_of_dropped_subscriptions() -> None:
    """C10, C13: a consumer that lives through the drop writes positions again; a later subscription must not inherit them.
    Positions of existing subscriptions, and records that a session holds, are left alone."""
    with (
        memory_domain(prices={"kind": "topic", "retention_ms": 3_600_000}) as root,
        connect(root, housekeeping=False) as context,
    ):
        kept = context.consumer("prices", subscription="kept", starting_position="earliest")
        consumer = context.consumer("prices", subscription="s", starting_position="earliest")
        context.producer("prices").send_many({"text": f"m{i}"} for i in range(3))
        messages = [one.receive(timeout=10) for one in (kept, consumer)]
        durable.drop_subscription(domain_of(context).log("prices"), "s")
        for message in messages:
            assert message is not None
            message.acknowledge()
        housekeeper = Housekeeper(domain_of(context), records_of(context), "prices")
        housekeeper.rounds.CLEAN_UP_EVERY_S = 0.0
        housekeeper.run()
        assert housekeeper.health.failures == {}
        consumer.close()
        housekeeper.run()
        assert housekeeper.health.failures == {}
        housekeeper.close()
        again = context.consumer("prices", subscription="s", starting_position="earliest")
        assert [m.text for m in iter(lambda: again.receive(timeout=0), None)] == ["m0", "m1", "m2"]
        assert [m.text for m in iter(lambda: kept.receive(timeout=0), None)] == ["m1", "m2"]
