"""Durable subscriptions of a topic: made and dropped by commits to its table's metadata.

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from spark_jms.core.client_identity import check_kept
from spark_jms.core.destination import Subscription
from spark_jms.log.commit import Decision, commit
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.metadata import metadata_action
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.storage import now_ms


def create_subscription(
    log: DeltaLog, name: str, floors: Callable[[Snapshot], dict[int, int]], selector: str | None = None
) -> Subscription:
    """The durable subscription `name`, made if it is new. `floors` is pure. Because this is a commit, a purge either sees
    the subscription or was committed before it."""
    check_kept(name)
    now = now_ms()
    found: Subscription | None = None

    def decide(snapshot: Snapshot) -> Decision | None:
        nonlocal found
        declared = snapshot.destination
        known = declared.subscriptions.get(name)
        found = known or Subscription(name, floors(snapshot), now, selector)
        if known is not None:
            return None
        after = attrs.evolve(declared, subscriptions={**declared.subscriptions, name: found})
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    commit(log, decide)
    assert found is not None  # of the attempt that counted: by now it may have been dropped again
    return found


def drop_subscription(log: DeltaLog, name: str) -> bool:
    """False when there is no such subscription."""

    def decide(snapshot: Snapshot) -> Decision | None:
        declared = snapshot.destination
        if name not in declared.subscriptions:
            return None
        rest = {n: s for n, s in declared.subscriptions.items() if n != name}
        slots = declared.slots and declared.slots.without(name)
        after = attrs.evolve(declared, subscriptions=rest, slots=slots)
        return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])

    return commit(log, decide) is not None
