"""What a query has claimed and acknowledged, in a record of its own (C9, C18).

A query holds this record for life, and its handle takes part in every write of the query's claims and acknowledgements.
So of two instances of one query, as a copied Spark checkpoint makes them, only one can commit anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from spark_jms.core.batch import claim_number
from spark_jms.errors import FormatVersionError, RecordSetError

FORMAT_VERSION = 2
PROGRESS = "progress"  # the key


@dataclass(frozen=True)
class QueryProgress:
    """`claimed` is the number of the newest claim ever, `acknowledged` the newest claim that Spark has in its commit log."""

    claimed: int = 0
    acknowledged: str = ""

    def with_acknowledged(self, claim: str) -> QueryProgress:
        if claim_number(claim) <= claim_number(self.acknowledged):
            return self
        return QueryProgress(max(self.claimed, claim_number(claim)), claim)

    def is_behind(self, claim: str) -> bool:
        """A checkpoint that ends with `claim` is older than what this query has acknowledged. Claims of early versions had no
        numbers: nothing is known of them."""
        numbered = not claim or claim_number(claim) > 0
        return numbered and claim_number(claim) < claim_number(self.acknowledged)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {"v": FORMAT_VERSION, "claimed": self.claimed, "acknowledged": self.acknowledged}, separators=(",", ":")
        ).encode()

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
            return QueryProgress(int(value["claimed"]), str(value["acknowledged"]))
        except (ValueError, KeyError, TypeError) as error:
            raise RecordSetError(
                f"the progress of {name} in the store cannot be read ({error!r}): restore the store from a copy, or start "
                "with a fresh checkpointLocation"
            ) from error
