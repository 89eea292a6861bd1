"""A destination that was dropped and created again is another destination (C5, C9)."""

from __future__ import annotations

import pickle
import shutil

from spark_jms.client import connect
from spark_jms.core.destination import Destination
from spark_jms.errors import DestinationReplacedError
from spark_jms.log.clean_up import checkpoint
from spark_jms.log.declarations import apply_destinations
from spark_jms.log.domain import REGISTER, Domain
from spark_jms.testing import memory_domain


def replace(root: str, name: str = "orders") -> None:
    """Delete a destination by hand, table and register entry, and create it again."""
    domain = Domain(root)
    shutil.rmtree(f"{root}/{name}")
    domain.storage.delete(f"{REGISTER}/{name}")
    apply_destinations(domain, [Destination(name, "queue")], lambda *_: False)


def test_table_id_stays_with_the_table() -> None:
    """C9: sends, Delta checkpoints and changed declarations keep the id; a new table has another one."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        log = context.domain.log("orders")
        first = log.refresh().table_id
        assert first
        context.producer("orders").send(text="a")
        checkpoint(log, every=1)
        apply_destinations(context.domain, [Destination("orders", "distributed-queue", 2)], lambda *_: True)
        assert log.refresh().table_id == first
        assert Domain(root).log("orders").refresh().table_id == first
        replace(root)
        assert Domain(root).log("orders").refresh().table_id not in ("", first)


def test_destination_replaced_error_says_what_to_do() -> None:
    """C9."""
    error = pickle.loads(pickle.dumps(DestinationReplacedError()))
    assert "dropped and created again" in str(error)
    assert "fresh checkpointLocation" in str(error)
