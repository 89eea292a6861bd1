"""Room for messages in a destination with a quota: what a commit to its log must have. core/quota.py has the theory.

    decide on a snapshot -- no quota, or grants cover the files -> commit
            |
            +-- QuotaNeeded -> reserve room (log/quotas.py), then decide again

The destination names its quota, or the servers whose quotas count its members, in its own metadata, so the commit that gives it
another quota orders before or after each send. Members on several servers need room in the quota of each: of all, or of none.

Features: T1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from spark_jms.core.destination import Destination
from spark_jms.core.quota import Request
from spark_jms.core.staged_file import StagedFile
from spark_jms.core.usage import MessageUsage
from spark_jms.errors import JmsqError
from spark_jms.log.snapshot import Snapshot
from spark_jms.store.errors import ResourceAllocationException

Action = Mapping[str, Mapping[str, Any]]


class QuotaExceededError(JmsqError, ResourceAllocationException):
    """Nothing was sent. Send the messages again when consumers have finished others, give the producer a longer send_timeout, or raise
    the maximum of the quota."""


class LargerThanQuotaError(QuotaExceededError):
    """Nothing was sent, and to wait would not help. Send fewer or smaller messages at once, or raise the maximum of the quota."""


class QuotaNeeded(Exception):
    """Not an error: the commit needs reservations. `needs`: quota -> how much; `epoch`: of the declaration that says so."""

    def __init__(self, needs: Mapping[str, MessageUsage], epoch: int) -> None:
        super().__init__(needs, epoch)
        self.needs, self.epoch = needs, epoch


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
    """`by` names the sender for people. `id` is unique to a send. A sender that `stays` keeps its place in the queue when it gives
    up for now, and asks again within seconds."""

    by: str
    id: str
    stays: bool = False


class QuotaAdmission(Protocol):
    """What a table's log needs of the domain's quotas."""

    def reserve(self, request: Request, quota: str, epoch: int, wait_s: float, *, stays: bool) -> Grant | None: ...
    def withdraw(self, grant: Grant) -> None: ...


def transaction_id(ledger: str, slot: int) -> str:
    return f"quota/{ledger}/{slot}"


def needs_of(declared: Destination, files: Iterable[StagedFile]) -> dict[str, MessageUsage]:
    """quota -> what the files need in it."""
    needs: dict[str, MessageUsage] = {}
    for file in files:
        quota = declared.quota_of(file.member)
        if quota is not None:
            needs[quota] = needs.get(quota, MessageUsage()) + MessageUsage(file.rows, file.bytes)
    return needs


def spent(snapshot: Snapshot, files: Sequence[StagedFile], grants: Sequence[Grant], now: int) -> list[Action]:
    """Pure. What the commit of these files adds to the log: the transactions that end the reservations; nothing where no quota
    counts them. Raises QuotaNeeded unless there is a grant of each quota, which covers its files and has not ended."""
    declared = snapshot.destination
    if declared.quota is None and not declared.limited:
        return []
    needs, by_quota = needs_of(declared, files), {grant.quota: grant for grant in grants}
    for quota, need in needs.items():
        grant = by_quota.get(quota)
        if grant is None or not _fits(snapshot, grant, need):
            raise QuotaNeeded(needs, declared.epoch)
    used = (by_quota[quota] for quota in sorted(needs))
    return [{"txn": {"appId": one.transaction, "version": one.number, "lastUpdated": now}} for one in used]


def _fits(snapshot: Snapshot, grant: Grant, need: MessageUsage) -> bool:
    left = grant.request.need - need
    ended = snapshot.transactions.get(grant.transaction, 0) >= grant.number
    return grant.epoch == snapshot.destination.epoch and not ended and left.messages >= 0 and left.bytes >= 0
