"""Users' own aggregations over the change feed, as docs/CHANGES.md has them (M12, T6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.admin.services import Rounds
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.tables.storage import now_ms
from spark_jms.testing import wait_until
from spark_jms.testing.inside import records_of
from tests.harness.users.pages import block

if TYPE_CHECKING:
    from tests.spark.conftest import Bench

LIMIT_S = 60


def started(bench: Bench, containing: str) -> Any:
    """The query of a recipe, with the feed of all destinations as `changes`."""
    code = block("docs/CHANGES.md", "python", containing).text
    code = code.replace("/data/", f"{bench.path}/").replace('"root", "messages"', f'"root", "{bench.root}"')
    names: dict[str, Any] = {"changes": bench.stream("*", view="changes")}
    exec(code, names)
    return names["query"]


def declare(bench: Bench, name: str, **changed: Any) -> None:
    declared = bench.domain.log(name).refresh().destination
    apply_destinations(bench.domain, [attrs.evolve(declared, **changed)], lambda *_: False)


def receive(bench: Bench, count: int) -> None:
    with connect(bench.root, housekeeping=False) as context, context.consumer("orders") as consumer:
        for _ in range(count):
            message = consumer.receive(timeout=10)
            assert message is not None
            message.acknowledge()


def send(bench: Bench, count: int, **properties: Any) -> None:
    with connect(bench.root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": f"{n}", "properties": properties} for n in range(count))


def test_each_finished_message_has_waited_once(bench: Bench) -> None:
    """M12: a join of the feed with itself; over restarts, and a batch of which the query does not know that it was written."""

    def waited() -> list[tuple[int, int, int]]:
        started(bench, "waited = sent.join(").awaitTermination()
        rows = bench.spark.read.parquet(str(bench.path / "waited")).collect()
        assert {row.destination for row in rows} == {"orders"}
        return [(row.member, row.number, row.waited_ms) for row in rows]

    send(bench, 6)
    receive(bench, 4)
    first = waited()
    assert len({row[:2] for row in first}) == len(first) == 4
    receive(bench, 2)
    every = waited()
    assert len({row[:2] for row in every}) == len(every) == 6
    assert all(0 <= ms < 600_000 for *_, ms in every)
    newest = max(int(path.name) for path in (bench.path / "waited-checkpoint" / "commits").glob("[0-9]*"))
    for name in (f"{newest}", f".{newest}.crc"):
        (bench.path / "waited-checkpoint" / "commits" / name).unlink(missing_ok=True)
    assert sorted(waited()) == sorted(every)


def test_dead_letters_are_counted_by_reason(bench: Bench) -> None:
    """M12, T6: by expiration and a limit, with the destination that has them now."""
    declare(bench, "prices", expiration_policy="Redirect", error_destination="jobs")
    declare(bench, "small", expiration_policy="Discard")
    over = pa.repeat(pa.scalar(now_ms() - 1, pa.int64()), 3)
    with connect(bench.root, housekeeping=False) as context:
        context.consumer("prices", subscription="a").close()
        for name in ("prices", "small"):
            context.producer(name).send_table(pa.table({"text": ["x"] * 3, "JMSExpiration": over}))
        rounds = Rounds(bench.domain, records_of(context), clean_up=True)
        assert [one.expired_messages for one in rounds.run(["prices", "small"])] == [3, 3]
        rounds.close()
    declare(bench, "prices", messages_limit_override=2)
    with connect(bench.root, housekeeping=False) as context:
        context.producer("prices").send_many({"text": f"{n}"} for n in range(5))
        with context.consumer("prices", subscription="a") as consumer:
            assert consumer.receive(timeout=10) is not None
    started(bench, 'queryName("dead_letters")').awaitTermination()
    found = {
        (row.destination, row.consumer, row.detail): row.messages for row in bench.spark.table("dead_letters").collect()
    }
    assert found == {
        ("prices", "message expiration", "jobs"): 3,
        ("small", "message expiration", "discard"): 3,
        ("prices", "subscription limit", None): 3,
    }


def test_alert_tells_how_many_messages_wait_by_a_selector(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """M12: while the queue is at rest it is not looked at."""
    printed: list[str] = []

    def alerts() -> list[str]:
        printed.append(capsys.readouterr().out)
        return "".join(printed).splitlines()

    send(bench, 1, color="red")
    send(bench, 3, color="blue")
    query = started(bench, "foreachBatch(look)")
    wait_until(lambda: bool(query.recentProgress), LIMIT_S)
    assert alerts() == []
    send(bench, 1, color="red")
    wait_until(lambda: alerts() == ["2 red messages wait in orders"], LIMIT_S, lambda: str(printed))
    query.stop()
