"""The reader of the change feed as Spark's driver calls it, without Spark (M12, T6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.client.context.context import Context
from spark_jms.core.changes.change import FeedPosition, FeedSpan, minute_of
from spark_jms.errors import InvalidDestinationError, StaleDomainError, UnreadableTableError
from spark_jms.log.changes.plan import plan
from spark_jms.log.changes.positions import FeedTables
from spark_jms.log.changes.rows import changes_again, changes_of
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.storage import now_ms
from spark_jms.settings.options import Options
from spark_jms.spark import changes
from spark_jms.spark.changes import ChangesStreamReader
from spark_jms.spark.options import parse_options
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.quotas import receive


def feed_options(root: str, timers: bool, *, keep: bool = False) -> Options:
    given = {"root": root, "destination": "*", "view": "changes", "forTimers": str(timers).lower()}
    return parse_options(given | {"onUnreadable": "keep" if keep else "fail"})


def rows_of(reader: ChangesStreamReader, start: Any, end: Any) -> list[tuple[str, int, int | None]]:
    parts: Any = reader.partitions(start, end)
    return [(row.kind, row.member, row.last) for part in parts for row in changes_of(part.part)]


@pytest.mark.parametrize("timers", [True, False])
def test_query_with_timers_has_a_batch_at_its_start(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, *, timers: bool
) -> None:
    """T6: the first offset of a process is a new one without news, and has no rows; the second is the same. Others stay idle."""
    monkeypatch.setattr(changes, "IDLE_WAIT_S", 0.0)
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    options = feed_options(root, timers)
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="x")
    first = ChangesStreamReader(options)
    begin = first.initialOffset()
    end = first.latestOffset(begin, ReadAllAvailable())
    assert rows_of(first, begin, end) == [("sent", 0, 1)]
    again = ChangesStreamReader(options)  # of a process that begins
    woken = again.latestOffset(end, ReadAllAvailable())
    assert (woken != end) == timers
    assert rows_of(again, end, woken) == []
    assert again.latestOffset(woken, ReadAllAvailable()) == woken


@pytest.mark.parametrize("timers", [True, False])
def test_purged_messages_are_done_for_a_query_with_timers(tmp_path: Any, *, timers: bool) -> None:
    """M12: so it forgets them; other readers have no such rows."""
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    reader = ChangesStreamReader(feed_options(root, timers))
    with connect(root, housekeeping=False) as context:
        for _ in range(2):
            context.producer("orders").send_many({"text": f"{n}"} for n in range(3))
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        receive(context, 4)
        rounds = Rounds(domain_of(context), records_of(context), clean_up=False)
        assert rounds.run(["orders"])[0].purged_messages == 3
        rounds.close()
    end = reader.latestOffset(begin, ReadAllAvailable())
    done = [row for row in rows_of(reader, begin, end) if row[0] == "done"]
    assert done == ([("done", 0, 3)] if timers else [])


def damage_log(folder: Path) -> Callable[[], object]:
    (newest,) = sorted(folder.glob("_delta_log/*.json"))[-1:]
    whole = newest.read_bytes()
    newest.write_bytes(b"torn")
    return lambda: newest.write_bytes(whole)


def pull_away(folder: Path) -> Callable[[], object]:
    away = folder.rename(folder.parent / "away")
    return lambda: away.rename(folder)


@pytest.mark.parametrize("damage", [damage_log, pull_away])
def test_destination_that_cannot_be_read_keeps_its_position(
    tmp_path: Any, damage: Callable[[Path], Callable[[], object]]
) -> None:
    """M12, C13: with `onUnreadable` `keep` the others continue, it is no drop, and its news come once it can be read; a reader that
    begins meanwhile has all of it then. A batch that is logged with its news has a row `unread`; without the option all is refused."""
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {name: {"kind": "queue"} for name in ("orders", "others")}})
    options = feed_options(root, timers=False, keep=True)
    reader = ChangesStreamReader(options)
    with connect(root, housekeeping=False) as context:
        for name in ("orders", "others"):
            context.producer(name).send(text="x")
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        context.producer("orders").send(text="y")
        logged = reader.latestOffset(begin, ReadAllAvailable())
        repair = damage(Path(root, "orders"))
        assert rows_of(ChangesStreamReader(options), begin, logged) == [("unread", 0, 2)]
        context.producer("others").send(text="y")
        running, new, strict = (
            ChangesStreamReader(one) for one in (options, options, feed_options(root, timers=False))
        )
        end = running.latestOffset(begin, ReadAllAvailable())
        assert rows_of(running, begin, end) == [("sent", 0, 2)], "of others"
        assert end["t"].keys() == begin["t"].keys()
        first = new.latestOffset(new.initialOffset(), ReadAllAvailable())
        assert rows_of(new, new.initialOffset(), first) == [("sent", 0, 2)]
        with pytest.raises((UnreadableTableError, InvalidDestinationError)):
            strict.latestOffset(begin, ReadAllAvailable())
        repair()
        for late, known, messages in ((running, end, 1), (new, first, 2)):
            after = late.latestOffset(known, ReadAllAvailable())
            parts: Any = late.partitions(known, after)
            rows = [(one.destination, one.messages) for part in parts for one in changes_of(part.part)]
            assert rows == [("orders", messages)]


def tear(file: Path) -> Callable[[], object]:
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    return lambda: file.write_bytes(whole)


def lose(file: Path) -> Callable[[], object]:
    whole = file.read_bytes()
    file.unlink()
    return lambda: file.write_bytes(whole)


def send_mixed(context: Context, name: str, count: int) -> None:
    """A file whose statistics do not tell when its messages are over."""
    over = [now_ms() + n * 3_600_000 for n in range(1, count + 1)]
    context.producer(name).send_table(pa.table({"text": ["x"] * count, "JMSExpiration": over}))


@pytest.mark.parametrize("damage", [tear, lose])
def test_damaged_file_has_a_row_in_place_of_its_rows(
    tmp_path: Any, damage: Callable[[Path], Callable[[], object]]
) -> None:
    """M12, C13: with `onUnreadable` `keep`, of messages and of acknowledgements; the files beside it are read, and its numbers once it
    is restored. Without the option the reader ends with its name."""
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {name: {"kind": "queue"} for name in ("orders", "others")}})
    domain = Domain(root)
    with connect(root, housekeeping=False) as context:
        for count in (2, 3, 2):
            send_mixed(context, "orders", count)
        send_mixed(context, "others", 2)
        receive(context, 1)
    sent = [file.hint for file in domain.log("orders").refresh().member_files(0).files]
    (ended,) = [file.hint for file in domain.acknowledgements("orders").refresh().member_files(0).files]
    damaged = [
        Path(domain.log("orders").storage.uri, sent[1].path),
        Path(domain.acknowledgements("orders").storage.uri, ended.path),
    ]
    repairs = [damage(file) for file in damaged]
    keeping, strict = (ChangesStreamReader(feed_options(root, timers=False, keep=keep)) for keep in (True, False))
    begin = keeping.initialOffset()
    end = keeping.latestOffset(begin, ReadAllAvailable())
    parts: Any = keeping.partitions(begin, end)
    rows = [row for part in parts for row in changes_of(part.part)]
    unread = {(row.destination, row.detail, row.first, row.last, row.messages) for row in rows if row.kind == "unread"}
    assert unread == {("orders", "sent", 3, 5, 3), ("orders", "ended", 1, 1, None)}
    sums = {
        name: sum(row.messages or 0 for row in rows if (row.destination, row.kind) == (name, "sent"))
        for name in ("orders", "others")
    }
    assert sums == {"orders": 4, "others": 2}
    (of_messages,) = [row for row in rows if (row.kind, row.detail) == ("unread", "sent")]
    assert (of_messages.due_ms, of_messages.ranges) == (minute_of(end["at"]), "[[3,5]]")
    with pytest.raises((UnreadableTableError, FileNotFoundError), match=damaged[0].name):
        rows_of(strict, begin, end)
    span = FeedSpan("sent", of_messages.table, "orders", 0, 3, 5, end["at"])
    with pytest.raises((UnreadableTableError, FileNotFoundError), match=damaged[0].name):
        changes_again(root, span)
    for repair in repairs:
        repair()
    assert sum(row.messages or 0 for row in changes_again(root, span)) == 3
    assert not [row for row in rows_of(keeping, begin, end) if row[0] == "unread"]


def test_drop_in_the_middle_and_a_restored_table_stop_no_other(tmp_path: Any) -> None:
    """M12, C13: a table that is half deleted is named until it is dropped; one that has fewer messages than were read keeps its
    position."""
    root = str(tmp_path / "messages")
    apply(root, {"destinations": {name: {"kind": "queue"} for name in ("orders", "others", "prices")}})
    options = feed_options(root, timers=False, keep=True)
    reader = ChangesStreamReader(options)
    prices = Path(root, "prices")
    with connect(root, housekeeping=False) as context:
        context.producer("prices").send(text="x")
        shutil.copytree(prices, prices.parent / "copy")
        for name in ("orders", "others", "prices"):
            context.producer(name).send(text="x")
        begin = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
        context.producer("others").send(text="y")
    shutil.rmtree(prices)
    (prices.parent / "copy").rename(prices)
    shutil.rmtree(Path(root, "orders", "_delta_log"))
    domain = Domain(root)
    tables = FeedTables(domain, "*", isolates=True)
    middle = tables.newest(FeedPosition.from_json(begin))
    assert {name: type(error) for name, error in tables.problems.items()} == {
        "orders": InvalidDestinationError,
        "prices": StaleDomainError,
    }
    rows = [row for part in plan(root, tables, FeedPosition.from_json(begin), middle) for row in changes_of(part)]
    assert [(row.kind, row.destination, row.last) for row in rows] == [("sent", "others", 2)]
    Path(root, "_jmsq", "destinations", "orders").unlink()
    shutil.rmtree(Path(root, "orders"))
    end = tables.newest(middle)
    assert tables.problems.keys() == {"prices"}
    assert end.tables.keys() == middle.tables.keys(), "while one cannot be read, none counts as dropped"
