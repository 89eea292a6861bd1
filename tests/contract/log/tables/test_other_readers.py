"""A filter of another program finds what a full scan finds, by each column of each table that we write (C3, C14, T6, T3)."""

from __future__ import annotations

import json
import math
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from spark_jms import apply, connect
from spark_jms.claims.records.life_cycle import LifeCycleTable
from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.client.context.context import Context
from spark_jms.log.tables.checkpoints import commit_path
from spark_jms.log.tables.commit import Decision, commit
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import PROPERTY
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.log.upkeep.clean_up import checkpoint
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.usage_history import USAGE_HISTORY
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.other_readers import READERS, wrong_answers

TYPES = ("boolean", "byte", "short", "int", "long", "float", "double", "string")
HIGHEST = "\U0010ffff" * 40  # no text is above it
TABLES = ("messages", "acknowledgements", "life cycle", "usage history")


def typed(number: int) -> dict[str, Any]:
    """A value of each promoted property."""
    low = {f"p_{kind}": number for kind in ("byte", "short", "int", "long")}
    return {
        "p_boolean": bool(number % 2),
        **low,
        "p_float": number + 0.5,
        "p_double": number + 0.5,
        "p_string": f"s{number}",
    }


def send_all_kinds(context: Context) -> None:
    """Files of one message and of several, with values that have no place between bounds, and columns without any value."""
    producer, group = context.producer("orders"), str(uuid.uuid4())
    whole = {"type": "order", "correlation_id": "c", "reply_to": "orders", "group_id": "short", "group_seq": 1}
    for number in range(2):
        producer.send(text=f"text {number}", **whole, properties=typed(number))
    producer.send(text="36 characters", group_id=group, properties=typed(9))
    producer.send(body=b"\x00\xff", properties={"p_double": math.nan})
    producer.send(body=b"bytes", properties={"p_double": math.inf, "p_float": -math.inf, "p_boolean": True})
    producer.send(text=HIGHEST, type=HIGHEST, group_id=HIGHEST, properties={"p_string": HIGHEST})
    producer.send(text="of another type", properties={"p_int": "7", "p_long": 2**62, "p_byte": 2**40})
    producer.send_many(
        [
            {"text": "several", "group_id": group, "properties": typed(3)},
            {"body": b"", "properties": {"p_double": math.nan}},
            {"text": HIGHEST, "properties": {"p_double": -math.inf, "p_string": HIGHEST}},
            {"text": "it's", "properties": {"p_boolean": False, "p_string": ""}},
        ]
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """The tables of a domain, by their names in TABLES."""
    root = tmp_path_factory.mktemp("domain")
    promoted = [f"p_{kind}:{kind}" for kind in TYPES]
    orders: dict[str, Any] = {"kind": "queue", "messageLoggingEnabled": True}
    apply(str(root), {"destinations": {"orders": orders}})
    with connect(str(root), housekeeping=False) as context:
        context.producer("orders").send(text="before the promotion", properties=typed(5))
    apply(str(root), {"destinations": {"orders": {**orders, "promotedProperties": promoted}}})
    with connect(str(root), housekeeping=False) as context:
        send_all_kinds(context)
        for _ in range(9):
            with context.consumer("orders", prefetch=1) as consumer:
                message = consumer.receive(timeout=10)
                assert message is not None
                message.acknowledge()
        assert UsageHistory(domain_of(context), records_of(context)).record(["orders"])[1] == {}
        life = domain_of(context).life_cycle("orders")
        assert life is not None
        messages = domain_of(context).log("orders")
        LifeCycleTable(life, messages.snapshot.table_id).write_sent(messages.refresh())
        logs = (messages, domain_of(context).acknowledgements("orders"), life)
        return dict(zip(TABLES, (*(Path(log.storage.uri) for log in logs), root / USAGE_HISTORY), strict=True))


def log_of(table: Path) -> DeltaLog:
    return DeltaLog(LocalStorage(table), table.name)


def as_written(table: Path) -> None:
    """As the fixture has it."""


def compacted(table: Path) -> None:
    log = log_of(table)
    before = len(log.refresh().files)
    compact(log)
    assert len(log.refresh().files) < before


def behind_our_checkpoint(table: Path) -> None:
    log = log_of(table)
    checkpoint(log, every=1)
    for version in range(log.refresh().version + 1):
        log.storage.delete(commit_path(version))


def behind_a_checkpoint_of_delta_rs(table: Path) -> None:
    DeltaTable(str(table)).create_checkpoint()
    for version in range(log_of(table).refresh().version + 1):
        (table / commit_path(version)).unlink()


def as_an_earlier_release_made_it(table: Path) -> None:
    for path in (table / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            action.get("metaData", {}).get("configuration", {}).pop(PROPERTY, None)
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))


def with_one_more_commit(table: Path) -> None:
    """Of this release, to a table of an earlier one."""
    as_an_earlier_release_made_it(table)
    assert commit(log_of(table), lambda snapshot: Decision("WRITE", [])) is not None


STATES: tuple[Callable[[Path], None], ...] = (
    as_written,
    compacted,
    behind_our_checkpoint,
    behind_a_checkpoint_of_delta_rs,
    with_one_more_commit,
)


def cases() -> list[Any]:
    """DuckDB and Polars take delta-rs' dataset, so that stands for them once the states of a table differ."""
    return [
        pytest.param(state, name, reader, id=f"{name}, {state.__name__}, {reader}")
        for state in STATES
        for name in TABLES
        for reader in READERS
        if not (state is compacted and name == "usage history")  # whose files have whole hours
        and (state is as_written or reader in ("to_pyarrow_dataset", "QueryBuilder"))
    ]


@pytest.mark.parametrize(("state", "name", "reader"), cases())
def test_filter_of_another_reader_finds_what_a_full_scan_finds(
    written: Mapping[str, Path], tmp_path: Path, state: Callable[[Path], None], name: str, reader: str
) -> None:
    """C3: by each column, with text of 36 characters and of U+10FFFF, NaN, infinity, booleans, bytes and NULL alone."""
    table = tmp_path / "table"
    shutil.copytree(written[name], table)
    state(table)
    assert wrong_answers(str(table), reader) == []


def test_table_of_an_earlier_release_has_wrong_answers_until_a_commit(
    written: Mapping[str, Path], tmp_path: Path
) -> None:
    """C3: what the test above would find if the property did nothing."""
    table = tmp_path / "table"
    shutil.copytree(written["messages"], table)
    as_an_earlier_release_made_it(table)
    wrong = wrong_answers(str(table), "to_pyarrow_dataset")
    assert {"JMSType", "JMSCorrelationID", "JMSMessageID", "JMSXGroupID", "p_double"} <= {
        one.split()[0] for one in wrong
    }
