"""Rename a destination: its table stays where it is, and its state has the table's id in its names.

The steps, each durable before the next. A rename that was interrupted anywhere is finished by the next one:

    1  a register entry of the new name, with the same paths    both names work; no other table can take the new one
    2  a commit changes the name in the table's metadata, and begins a new epoch: a reservation under the old name covers no send
    3  the ledgers of its quotas count it under the new name; shared ones under the old one too, until it has ended
    4  the old register entry is removed

Features: C14, C18, T1 (docs/FEATURES.md)
"""

from __future__ import annotations

from dataclasses import dataclass

import attrs

from spark_jms.admin.drop import consumers_alive
from spark_jms.core.destination import check_name
from spark_jms.errors import DestinationInUseError, InvalidDestinationError
from spark_jms.log.commit import Decision, commit
from spark_jms.log.domain import Domain
from spark_jms.log.error_destinations import referring
from spark_jms.log.metadata import metadata_action
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.temporary import check_not_temporary
from spark_jms.store import Store


@dataclass(frozen=True)
class RenamedDestination:
    old: str
    new: str
    path: str  # of the table, below the root: it did not change


def rename_destination(domain: Domain, store: Store, old: str, new: str, *, force: bool = False) -> RenamedDestination:
    """Rename a destination, or finish a rename that was interrupted. Subscriptions, positions, claims and checkpoints stay
    valid: queries and applications continue under the new name.

    Raises DestinationInUseError, and changes nothing, while consumers are alive, unless forced; InvalidDestinationError
    when there is no `old`, or another destination is called `new`.
    """
    check_name("destination", new)
    check_not_temporary(new)
    log = domain.log(old)
    table_id = log.refresh().table_id
    entry = domain.register.entry(old)
    assert entry is not None
    taken = domain.register.entry(new)
    if old == new or (taken is not None and taken != entry):
        raise InvalidDestinationError(f"{new} is the name of another destination: {old} was not renamed")
    consumers = consumers_alive(domain, store, table_id)
    if consumers and not force:
        raise DestinationInUseError(
            f"destination {old} is used by {', '.join(consumers)}: it was not renamed. Stop its consumers and senders, or "
            "rename it with --force: then they get InvalidDestinationError sooner or later, and have to be started with the "
            "new name"
        )
    if taken is None and not force and (others := referring(domain, old)):
        raise DestinationInUseError(
            f"destination {old} is the errorDestination of {', '.join(others)}: it was not renamed. Rename it with --force, "
            "then apply the new name there: until then their failed messages are kept back"
        )
    if taken is None and not domain.register.add(new, entry):
        raise InvalidDestinationError(f"{new} was created meanwhile: {old} was not renamed")

    def decide(snapshot: Snapshot) -> Decision | None:
        if snapshot.destination.name == new:
            return None
        declared = snapshot.destination
        action = metadata_action(snapshot, attrs.evolve(declared, name=new, epoch=declared.epoch + 1))
        return Decision("RENAME", [{"metaData": {**action["metaData"], "name": new}}])

    commit(log, decide)
    domain.quotas.observe(new)
    domain.quotas.forget(old)
    domain.register.remove(old)
    return RenamedDestination(old, new, entry.path)
