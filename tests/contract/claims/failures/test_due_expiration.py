"""The sink of the expiration query: messages that are due, of which the record set decides (T6, M12)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_jms import apply, connect
from spark_jms.admin.destinations import drop_destination
from spark_jms.admin.statistics import collect
from spark_jms.claims.failures.due_expiration import (
    EXPIRATION_FOLDER,
    DueExpiration,
    DueMessages,
    EmbeddedExpiration,
    ExpirationProblems,
)
from spark_jms.claims.failures.expiration import ExpirationScan
from spark_jms.client.context.context import Context
from spark_jms.core.messages.ranges import Ranges
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.options import Options
from spark_jms.spark.expiration_sink import DUE_COLUMNS, ExpirationWriter, ExpiredMessages
from spark_jms.store import MemoryStore, StoreBusyError
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of


@pytest.fixture
def context(tmp_path: Any) -> Iterator[Context]:
    store = f"due-{tmp_path.name}"
    destinations = {"orders": {"kind": "queue"}, "others": {"kind": "queue"}}
    apply(str(tmp_path), {"store": f"memory://{store}", "destinations": destinations})
    with connect(str(tmp_path), housekeeping=False) as made:
        yield made
    MemoryStore.forget(store)


def due(context: Context, name: str, first: int = 1, last: int = 100) -> DueMessages:
    table = domain_of(context).log(name).refresh().table_id
    return DueMessages(table, name, 0, Ranges.of((first, last)))


def send_over(context: Context, name: str, count: int) -> None:
    context.producer(name).send_many({"text": f"{n}", "time_to_live": "1 ms"} for n in range(count))


def expired(context: Context, name: str) -> int:
    return collect(domain_of(context), records_of(context), name).expired


def test_only_what_is_over_expires_and_once(context: Context) -> None:
    """T6: messages of other files stay for another time; a batch that is repeated, and a second sink, change nothing."""
    for count in (2, 3):
        send_over(context, "orders", count)
    context.producer("orders").send(text="stays", time_to_live="1 h")
    context.producer("orders").send(text="stays")
    one, other = (DueExpiration(domain_of(context), records_of(context)) for _ in range(2))
    wait_until(lambda: one.expire([due(context, "orders", 1, 2)]) == 2, 10)
    assert expired(context, "orders") == 2
    wait_until(lambda: one.expire([due(context, "orders")]) == 3, 10)
    assert [sink.expire([due(context, "orders")]) for sink in (one, other)] == [0, 0]
    found = collect(domain_of(context), records_of(context), "orders")
    assert (found.expired, found.backlog) == (5, 2)


def test_message_that_a_consumer_has_expires_later(context: Context) -> None:
    """T6: the state of the query names it again."""
    sink = DueExpiration(domain_of(context), records_of(context))
    context.producer("orders").send(text="held", time_to_live="1 s")
    with context.consumer("orders") as consumer:
        assert consumer.receive(timeout=10) is not None
        send_over(context, "others", 1)
        wait_until(lambda: sink.expire([due(context, "orders"), due(context, "others")]) == 1, 10)
        assert expired(context, "orders") == 0
    wait_until(lambda: sink.expire([due(context, "orders")]) == 1, 10)


def test_destination_that_fails_or_is_gone_holds_up_no_other(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T6: it is logged, and comes again."""
    for name in ("orders", "others"):
        send_over(context, name, 2)
    sink = DueExpiration(domain_of(context), records_of(context))
    gone = DueMessages("another table", "orders", 0, Ranges.of((1, 9)))
    run = ExpirationScan.run

    def away(scan: ExpirationScan, **given: Any) -> int:
        if wanted(scan):
            raise StoreBusyError("away")
        return run(scan, **given)

    def wanted(scan: ExpirationScan) -> bool:
        return vars(scan)["_table"].name == "orders"

    with monkeypatch.context() as patch:
        patch.setattr(ExpirationScan, "run", away)
        wait_until(lambda: sink.expire([gone, due(context, "orders"), due(context, "others")]) == 2, 10)
    assert "orders: messages that are due did not expire" in caplog.text
    assert expired(context, "others") == 2
    wait_until(lambda: sink.expire([due(context, "orders")]) == 2, 10)


def test_engine_without_spark_ends_what_falls_due(tmp_path: Path) -> None:
    """T6: from the beginning, in the minute after its time, and what is held when it is returned; a process that begins again, and a
    second one, change nothing. Messages of a damaged file expire once it is restored. A destination that is dropped is forgotten."""
    root, now = str(tmp_path / "messages"), [now_ms()]
    apply(root, {"destinations": {name: {"kind": "queue"} for name in ("orders", "others")}})

    def engine() -> EmbeddedExpiration:
        return EmbeddedExpiration(domain_of(context), records_of(context), clock_ms=lambda: now[0])

    def send(name: str, *over_ms: int) -> None:
        rows = pa.table({"text": ["x"] * len(over_ms), "JMSExpiration": [now_ms() + ms for ms in over_ms]})
        context.producer(name).send_table(rows)

    with connect(root, housekeeping=False) as context:
        send("orders", -120_000, -60_000, 3_600_000)
        now[0] = now_ms() + 60_000
        one, other = engine(), engine()
        assert [each.run() for each in (one, other, engine())] == [(2, {}), (0, {}), (0, {})]
        with context.consumer("others") as consumer:
            context.producer("others").send(text="held", time_to_live="1 s")
            assert consumer.receive(timeout=10) is not None
            now[0] += 120_000
            assert one.run() == (0, {})
        time_over = now_ms() + 1_500
        wait_until(lambda: now_ms() > time_over)
        for _ in range(3):  # ever more rarely
            now[0] += 4 * 60_000
            one.run()
        assert expired(context, "others") == 1
        send("orders", -120_000, 7_200_000)
        newest = domain_of(context).log("orders").refresh().member_files(0).files[-1]
        file = Path(domain_of(context).log("orders").storage.uri, newest.path)
        whole = file.read_bytes()
        file.write_bytes(b"torn")
        count, prevented = one.run()
        assert (count, [*prevented]) == (0, ["orders"])
        assert newest.path in prevented["orders"]
        file.write_bytes(whole)
        for _ in range(3):
            now[0] += 4 * 60_000
            one.run()
        assert expired(context, "orders") == 3
        assert one.run() == (0, {})
        drop_destination(domain_of(context), records_of(context), "orders", force=True)
        for _ in range(2):
            now[0] += 10_000_000
            assert one.run() == (0, {})


def test_problems_reach_the_services_through_the_commit(
    context: Context, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T6, C13: a destination stays named until a task has looked at it without an error, or long enough ago; the sink fails
    nothing. Files of queries that ended a day ago go."""
    root, query, now = context.root, "2d1b", [10_000_000]
    writer = ExpirationWriter(
        Options(root=root, destination="*", action="expire"), SimpleNamespace(names=[*DUE_COLUMNS]), overwrite=False
    )  # type: ignore[arg-type]
    problems = ExpirationProblems(domain_of(context), query, lambda: now[0])

    def commit(*looked: dict[str, str]) -> None:
        writer.commit([None, *(ExpiredMessages(0, query, one) for one in looked)], 1)

    commit({}, {"orders": ""})
    assert problems.known() == {}
    now[0] = now_ms()
    commit({"orders": "StoreBusyError: away"}, {"orders": "", "others": ""})
    assert problems.known() == {"orders": "StoreBusyError: away"}
    commit({"others": "StoreBusyError: away"})
    assert problems.known().keys() == {"orders", "others"}
    commit({"orders": ""})
    assert problems.known().keys() == {"others"}
    now[0] += 3_600_000
    assert problems.known() == {}
    problems.forget_old()
    assert Path(root, EXPIRATION_FOLDER, query).exists()
    now[0] += 86_400_000
    problems.forget_old()
    assert not Path(root, EXPIRATION_FOLDER, query).exists()
    Path(root, EXPIRATION_FOLDER, query).write_bytes(b"torn")
    assert problems.known() == {}
    commit({"orders": ""}, {})
    commit({"orders": "away"})
    assert [*ExpirationProblems(domain_of(context), query).known()] == ["orders"]

    def fails(*_: Any) -> None:
        raise PermissionError("read only")

    monkeypatch.setattr(ExpirationProblems, "note", fails)
    commit({"orders": "away"})
    assert "read only" in caplog.text


def test_sink_tells_what_it_has_looked_at(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: also that a destination is fine again."""
    sink = DueExpiration(domain_of(context), records_of(context))
    assert (sink.expire([due(context, "orders")]), sink.looked) == (0, {"orders": ""})
    with monkeypatch.context() as patch:
        patch.setattr(ExpirationScan, "run", lambda *_, **__: (_ for _ in ()).throw(StoreBusyError("away")))
        sink.expire([due(context, "orders"), due(context, "others")])
        assert [(name, text[:20]) for name, text in sink.looked.items()] == [
            ("orders", "StoreBusyError: away"),
            ("others", "StoreBusyError: away"),
        ]
    pulled = Path(context.root, "orders")
    pulled.rename(pulled.with_name("elsewhere"))
    gone = DueMessages("its table", "orders", 0, Ranges.of((1, 9)))
    assert sink.expire([gone]) == 0
    assert sink.looked["orders"].startswith("InvalidDestinationError: "), "that is no drop"
