"""Where record sets lie in the store: one record each, one object in it (C9)."""

from __future__ import annotations

from spark_jms.core.record_set import RecordSet
from spark_jms.store import Store

STATE_KEY = "state"


def read_state(store: Store, name: str) -> RecordSet:
    """A record set as last committed, without opening its record."""
    return RecordSet.from_bytes(store.peek(name).get(STATE_KEY), name)
