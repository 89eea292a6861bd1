"""Record sets of format version 1, one JSON value each, as `jmsq upgrade` reads them.

Features: C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from spark_jms.core.acknowledgement import Acknowledgement, Outbox
from spark_jms.core.chunked_ranges import ChunkedRanges
from spark_jms.core.claim import Claim
from spark_jms.core.ranges import Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.redelivery import DeliveryCounts
from spark_jms.errors import RecordSetError

STATE_KEY = "state"


def record_name_v1(destination: str, subscription: str, member: int) -> str:
    return f"{destination}/{subscription}/{member}"


@dataclass(frozen=True)
class RecordSetV1:
    """`acknowledged` maps each query to the newest claim that it acknowledged here."""

    state: RecordSet
    acknowledged: dict[str, str]


def from_v1(data: bytes, name: str) -> RecordSetV1:
    """Raises RecordSetError with `name`."""
    try:
        value = json.loads(data)
        if value["v"] != 1:
            raise ValueError(f"its version is {value['v']}")
        state = RecordSet(
            floor=value["floor"],
            done=ChunkedRanges.of(Ranges.from_json(value["done"])),
            position=value["position"],
            claims={
                key: Claim(key, consumer, session, Ranges.from_json(picks), *rest)
                for key, consumer, session, picks, *rest in value["claims"]
            },
            deliveries=DeliveryCounts(
                {times: ChunkedRanges.of(Ranges.from_json(r)) for times, r in value["deliveries"]}
            ),
            consumers=value["consumers"],
            outbox=Outbox(
                Acknowledgement(position, consumer, claim, Ranges.from_json(picks), *rest)
                for position, consumer, claim, picks, *rest in value["outbox"]
            ),
        )
        return RecordSetV1(state, dict(value.get("acknowledged", {})))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordSetError(
            f"the state of {name} in the store cannot be read ({error!r}): nothing of it was upgraded. Restore the store from "
            "a copy, then run `jmsq upgrade` again"
        ) from error
