"""Expired messages counted by a streaming aggregation of the user's own, as docs/MESSAGES.md has it (T6, M12)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import pyarrow as pa

from spark_jms import connect
from spark_jms.admin.services import Rounds
from spark_jms.admin.statistics import collect
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing.inside import records_of
from tests.harness.project import PROJECT

if TYPE_CHECKING:
    from tests.spark.conftest import Bench


def test_recipe_equals_the_record_sets_after_a_restart(bench: Bench) -> None:
    """T6, M12: discarded and redirected messages, of each subscription, without a life-cycle log; the query continues from its
    checkpoint, and a batch of which it does not know that it was written changes nothing."""
    page = (PROJECT / "docs/MESSAGES.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r"```python\n(from pyspark\.sql\.functions import sum\n.*?)```", page, re.DOTALL)
    recipe = recipe.replace("/data/", f"{bench.path}/")

    def expire(count: int, policy: str) -> None:
        declared = bench.domain.log("prices").refresh().destination
        changed = attrs.evolve(declared, expiration_policy=policy, error_destination="jobs")
        apply_destinations(bench.domain, [changed], lambda name, member: False)
        with connect(bench.root, housekeeping=False) as context:
            for subscription in ("a", "b"):
                context.consumer("prices", subscription=subscription).close()
            over = pa.repeat(pa.scalar(now_ms() - 1, pa.int64()), count)
            context.producer("prices").send_table(pa.table({"text": ["x"] * count, "JMSExpiration": over}))
            rounds = Rounds(bench.domain, records_of(context), clean_up=True)
            assert [done.expired_messages for done in rounds.run(["prices"])] == [2 * count]
            rounds.close()

    def counted() -> dict[str, int]:
        names = {"changes": bench.stream("*", view="changes")}
        exec(recipe, names)
        names["query"].awaitTermination()  # type: ignore[attr-defined]
        rows = bench.spark.read.format("delta").load(str(bench.path / "expired")).collect()
        return {name: sum(row.messages for row in rows if row.subscription == name) for name in ("a", "b")}

    expire(20, "Discard")
    assert counted() == {"a": 20, "b": 20}
    expire(5, "Redirect")
    for name in ("0", ".0.crc"):
        (
            bench.path / "expired-checkpoint" / "commits" / name
        ).unlink()  # as if it was killed between the batch and its commit
    assert counted() == {"a": 25, "b": 25}
    with connect(bench.root, housekeeping=False) as context:
        assert collect(bench.domain, records_of(context), "prices").expired == 50
