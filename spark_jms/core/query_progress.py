"""What a query has claimed and acknowledged, in a record of its own.

A query holds this record for life, and its handle takes part in every write of the query's claims and acknowledgements.
So of two instances of one query, as a copied Spark checkpoint makes them, only one can commit anything.

A trial (poison.py) is stored here and not in the claim's record sets: they may be handed over while the batch runs, and a
failure has to be noted at once.

Features: C9, C18 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from spark_jms.core.batch import claim_number
from spark_jms.core.poison import Messages, Trial, trial_from_json, trial_to_json, without
from spark_jms.core.ranges import Ranges
from spark_jms.errors import FormatVersionError, RecordSetError

FORMAT_VERSION = 3  # with messages that a trial withholds; without any, version 2
PROGRESS = "progress"  # the key


@dataclass(frozen=True)
class QueryProgress:
    """`claimed` is the number of the newest claim ever, `acknowledged` the newest claim that Spark has in its commit log.
    `trial` is of the open claim, once its batch was replayed or has failed. `left` are the messages of the acknowledged batch
    that its acknowledgement has not finished: they were revoked, set aside or withheld, or another consumer holds their record."""

    claimed: int = 0
    acknowledged: str = ""
    trial: Trial | None = None
    left: Messages = field(default_factory=dict)

    def with_acknowledged(self, claim: str, batch: Messages | None = None) -> QueryProgress:
        """Spark has the claim in its commit log; nothing of its `batch` is finished yet."""
        if claim_number(claim) <= claim_number(self.acknowledged):
            return self
        claimed = max(self.claimed, claim_number(claim))
        return replace(self, claimed=claimed, acknowledged=claim, left=dict(batch or {}))

    def with_finished(self, claim: str, messages: Messages) -> QueryProgress:
        """The acknowledgement of the claim finishes these messages of its batch."""
        if claim != self.acknowledged or not messages:
            return self
        return replace(self, left=without(self.left, messages))

    def has_acknowledged(self, claim: str) -> bool:
        return claim_number(claim) <= claim_number(self.acknowledged)

    def is_behind(self, claim: str) -> bool:
        """A checkpoint that ends with `claim` is older than what this query has acknowledged. Claims of early versions had no
        numbers: nothing is known of them."""
        numbered = not claim or claim_number(claim) > 0
        return numbered and claim_number(claim) < claim_number(self.acknowledged)

    def knows(self, claim: str) -> bool:
        """False: the claim was made by a query that had come further than this one."""
        return claim_number(claim) <= self.claimed

    def to_bytes(self) -> bytes:
        value: dict[str, object] = {"v": 2, "claimed": self.claimed, "acknowledged": self.acknowledged}
        if self.trial is not None:
            narrowed = self.trial.withheld or self.trial.finished
            value |= {"v": FORMAT_VERSION if narrowed else 2, "trial": trial_to_json(self.trial)}
        if self.left:
            value["left"] = {str(member): ranges.to_json() for member, ranges in sorted(self.left.items())}
        return json.dumps(value, separators=(",", ":")).encode()

    @staticmethod
    def from_bytes(data: bytes | None, name: str) -> QueryProgress:
        """None is a new query. Raises RecordSetError or FormatVersionError with `name`."""
        if data is None:
            return QueryProgress()
        try:
            value = json.loads(data)
            if value["v"] > FORMAT_VERSION:
                raise FormatVersionError(
                    f"the progress of {name} has format version {value['v']}, this spark-jms reads up to {FORMAT_VERSION}: "
                    "install a later spark-jms"
                )
            trial = trial_from_json(value["trial"]) if "trial" in value else None
            left = {int(member): Ranges.from_json(ranges) for member, ranges in value.get("left", {}).items()}
            return QueryProgress(int(value["claimed"]), str(value["acknowledged"]), trial, left)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RecordSetError(
                f"the progress of {name} in the store cannot be read ({error!r}): restore the store from a copy, or start "
                "with a fresh checkpointLocation"
            ) from error
