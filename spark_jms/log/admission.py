"""Room for messages in a destination with a quota: what a commit to its log must have (T1). core/quota.py has the theory.

    decide on a snapshot -- no quota, or the grant covers the files -> commit
            |
            +-- QuotaNeeded -> reserve room (log/quotas.py), then decide again

The destination names its quota in its own metadata, so the commit that gives it another quota orders before or after each send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_jms.core.quota import Request
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.usage import MessageUsage
from spark_jms.errors import JmsqError
from spark_jms.log.snapshot import Snapshot
from spark_jms.store.errors import ResourceAllocationException

Action = Mapping[str, Mapping[str, Any]]


class QuotaExceededError(JmsqError, ResourceAllocationException):
    """The quota of the destination has no room for these messages, and nothing was sent: send them again when consumers have
    finished others, give the producer a longer send_timeout, or raise the maximum."""


class LargerThanQuotaError(QuotaExceededError):
    """The messages are more than the maximum of the destination's quota, so they can never be sent at once: send fewer or smaller
    ones, or raise the maximum."""


class QuotaNeeded(Exception):
    """Not an error: the commit needs a reservation for `need` in the destination's quota."""

    def __init__(self, quota: str, need: MessageUsage, epoch: int) -> None:
        super().__init__(quota, need, epoch)
        self.quota, self.need, self.epoch = quota, need, epoch


@dataclass(frozen=True)
class Grant:
    """A reservation in a quota's ledger, under the `number` of its entry. `epoch`: of the destination's declaration, which must not
    have changed when it is used: another quota, and back, may have removed it."""

    quota: str
    ledger: str
    request: Request
    number: int
    slot: int
    epoch: int

    @property
    def transaction(self) -> str:
        """The application id of the transaction that ends it, with its number as the version."""
        return transaction_id(self.ledger, self.slot)


@dataclass(frozen=True)
class Sender:
    """`id` is unique to a send; None: one is made. `by` names the sender for people. A sender that `stays` keeps its place in
    the queue when it gives up for now, and asks again within seconds."""

    by: str
    id: str | None = None
    stays: bool = False


class QuotaAdmission(Protocol):
    """What a table's log needs of the domain's quotas."""

    def reserve(self, table: str, room: QuotaNeeded, sender: Sender, wait_s: float) -> Grant | None: ...
    def withdraw(self, grant: Grant) -> None: ...


def transaction_id(ledger: str, slot: int) -> str:
    return f"quota/{ledger}/{slot}"


def need_of(files: Sequence[StagedFile]) -> MessageUsage:
    return MessageUsage(sum(file.rows for file in files), sum(file.bytes for file in files))


def spent(snapshot: Snapshot, files: Sequence[StagedFile], grant: Grant | None, now: int) -> list[Action]:
    """Pure. What the commit of these files adds to the log: the transaction that ends the reservation; nothing where the
    destination has no quota. Raises QuotaNeeded unless the grant is one of its quota, covers the files and has not ended."""
    quota = snapshot.destination.quota
    if quota is None or not files:
        return []
    need, epoch = need_of(files), snapshot.destination.epoch
    if grant is None or (grant.quota, grant.epoch) != (quota, epoch):
        raise QuotaNeeded(quota, need, epoch)
    left = grant.request.need - need
    if snapshot.transactions.get(grant.transaction, 0) >= grant.number or left.messages < 0 or left.bytes < 0:
        raise QuotaNeeded(quota, need, epoch)
    return [{"txn": {"appId": grant.transaction, "version": grant.number, "lastUpdated": now}}]
