"""Purge removes rows of the acknowledgement table by their age (C13, C14)."""

from __future__ import annotations

import json

from spark_jms import connect
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.core.destinations.destination import Destination
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge_acknowledgements
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, records_of, subscriber_of

DAY_MS = 86_400_000


def test_purge_removes_only_old_rows() -> None:
    """C14: the newest acknowledgement of a file counts, also after compaction; sequences continue."""
    with memory_domain(orders={"kind": "queue", "acknowledgement_retention_ms": DAY_MS}) as root:
        for _ in range(8):
            with connect(root, housekeeping=False) as context, context.consumer("orders") as consumer:
                context.producer("orders").send(text="a")
                message = consumer.receive(timeout=5)
                assert message is not None
                message.acknowledge()
                subscriber_of(consumer).flush_outbox()
        with connect(root, housekeeping=False) as context:
            table = domain_of(context).acknowledgements("orders")
            before = len(table.refresh().files)
            assert before == 8
            highest = [json.loads(f.stats)["maxValues"]["acknowledged_ms"] for f in table.snapshot.files.values()]
            assert compact(table).compacted_files == 8
            (file,) = table.refresh().files.values()
            assert json.loads(file.stats)["maxValues"]["acknowledged_ms"] == max(highest)
            housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
            assert housekeeper.run()
            assert len(table.refresh().files) == 1
            assert purge_acknowledgements(table, DAY_MS, now=max(highest) + DAY_MS) == 0
            assert purge_acknowledgements(table, DAY_MS, now=max(highest) + DAY_MS + 1) == 1
            assert not table.refresh().files
            assert table.snapshot.last_sequence(0) == 8
            housekeeper.close()


def test_housekeeping_uses_the_retention_of_the_destination() -> None:
    """C13: the default is one week."""
    assert Destination("a", "queue").acknowledgement_retention_ms == 7 * DAY_MS
    with (
        memory_domain(orders={"kind": "queue", "acknowledgement_retention_ms": 0}) as root,
        connect(root, housekeeping=False) as context,
        context.consumer("orders") as consumer,
    ):
        context.producer("orders").send(text="a")
        message = consumer.receive(timeout=5)
        assert message is not None
        message.acknowledge()
        subscriber_of(consumer).flush_outbox()
        table = domain_of(context).acknowledgements("orders")
        acknowledged = json.loads(next(iter(table.refresh().files.values())).stats)["maxValues"]["acknowledged_ms"]
        wait_until(lambda: now_ms() > acknowledged)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        assert housekeeper.run()
        assert not table.refresh().files
        housekeeper.close()
