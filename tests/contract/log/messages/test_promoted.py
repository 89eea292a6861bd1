"""Promoted properties: columns of a destination's table, promoted and given up while messages come and go (C7, T15)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jms import apply, connect
from spark_jms.admin.backup import back_up, restore
from spark_jms.admin.transfer import MoveOrder, RedriveOrder, move, redrive
from spark_jms.claims.messages import scan, sort_order
from spark_jms.claims.upkeep import views
from spark_jms.client.context.context import Context
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.selector import Selector
from spark_jms.errors import InvalidDestinationError, ModuleFileError
from spark_jms.log.destinations.declarations import apply_destinations
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages import data_files
from spark_jms.log.tables.checkpoints import write_checkpoint
from spark_jms.log.tables.commit import column_types
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.upkeep.compaction import compact
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.messages.shorthands import reject_next, texts, texts_now

SELECTORS = (
    "amount > 50",
    "amount = 7.0",
    "amount = 7",
    "amount / 2 = 3",
    "amount IS NULL",
    "NOT amount > 50",
    "region = 'eu' AND amount <= 20.5",
    "region IN ('us', 'eu') OR amount > 90",
    "region <> 'eu' AND JMSPriority > 4",
    "urgent",
    "count BETWEEN 3 AND 5",
)
TYPES = {"amount": "double", "region": "string", "urgent": "boolean", "count": "int"}


@pytest.fixture
def context() -> Iterator[Context]:
    queues: dict[str, Any] = {"orders": "queue", "others": "queue"}
    with memory_domain(**queues) as root, connect(root, housekeeping=False) as made:
        yield made


def promote(context: Context, *names: str, destination: str = "orders", **settings: Any) -> None:
    """Declare these properties promoted, and no others."""
    written = tuple(name if ":" in name else f"{name}:{TYPES[name]}" for name in names)
    wanted = Destination(destination, "queue", promoted_properties=written, **settings)
    apply_destinations(domain_of(context), [wanted], lambda destination, member: False)


def files(context: Context, destination: str = "orders") -> list[DataFile]:
    return list(domain_of(context).log(destination).refresh().member_files(0).files)


def properties_of(n: int, chance: random.Random) -> dict[str, Any]:
    """Mostly of the promoted type, sometimes of another one or missing."""
    values = {
        "amount": chance.choice([n * 1.0, n + 0.5, 7.0, 7, "7.0"]) if chance.random() < 0.3 else n * 1.0,
        "region": chance.choice(["eu", "us", "asia"]),
        "urgent": chance.choice([True, False]),
        "count": chance.choice([n % 9, 3, 2**40, 4.0]) if chance.random() < 0.1 else n % 9,
    }
    return {name: value for name, value in values.items() if chance.random() < 0.9}


def found(context: Context, selector: str) -> list[str]:
    return [m.text or "" for m in context.browser("orders", selector=selector)]


# -- the answers -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", range(3))
def test_answer_does_not_depend_on_when_a_property_was_promoted(context: Context, seed: int) -> None:
    """C7: promotions come and go between sends of one producer, files are compacted, values are mixed; every selector finds
    what it finds in the messages themselves."""
    chance = random.Random(seed)
    producer = context.producer("orders")
    sent: list[tuple[str, int, dict[str, Any]]] = []
    for _ in range(12):
        promote(context, *chance.sample(list(TYPES), chance.randrange(4)))
        for _ in range(chance.randrange(1, 4)):
            texts = [str(len(sent) + i) for i in range(chance.randrange(1, 9))]
            batch = [(text, chance.randrange(10), properties_of(int(text), chance)) for text in texts]
            producer.send_many({"text": t, "priority": p, "properties": values} for t, p, values in batch)
            sent += batch
        if chance.random() < 0.3:
            compact(domain_of(context).log("orders"))
        for text in SELECTORS:
            selector = Selector.parse(text)
            assert selector is not None
            expected = [t for t, p, values in sent if selector.matches({"JMSPriority": p}, values)]
            assert found(context, text) == expected, text


def test_selector_reads_the_column_and_skips_files(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: complete columns are read instead of the properties; a file is skipped by their statistics. A file from before the
    promotion, or with a value of another type, is read by its properties."""
    producer = context.producer("orders")
    producer.send_many({"text": f"old {n}", "properties": {"amount": float(n)}} for n in range(3))
    promote(context, "amount", "region")
    producer.send_many({"text": f"low {n}", "properties": {"amount": float(n), "region": "eu"}} for n in range(3))
    producer.send_many({"text": f"high {n}", "properties": {"amount": 100.0 + n, "region": "eu"}} for n in range(3))
    producer.send_many({"text": f"mixed {n}", "properties": {"amount": n, "region": "us"}} for n in range(3))
    producer.send(text="none")
    read: list[list[str]] = []
    read_stored = data_files.read_stored

    def reading(storage: Any, file: Any, part: Any, columns: list[str], *rest: Any) -> Any:
        read.append(columns)
        return read_stored(storage, file, part, columns, *rest)

    monkeypatch.setattr(scan, "read_stored", reading)
    for text, matching, columns in (
        ("amount >= 101", ["high 1", "high 2"], [["properties"], ["amount"], ["properties"]]),
        ("amount = 1", ["old 1", "low 1", "mixed 1"], [["properties"], ["amount"], ["properties"]]),
        ("region = 'us'", ["mixed 0", "mixed 1", "mixed 2"], [["properties"], ["region"]]),
        ("region = 'us' AND amount = 2", ["mixed 2"], [["properties"], ["region", "properties"]]),
        (
            "region = 'eu' AND amount < 1 AND other IS NULL",
            ["low 0"],
            [["properties"], ["amount", "region", "properties"]],
        ),
    ):
        read.clear()
        assert found(context, text) == matching
        assert read == columns, text


# -- the table -------------------------------------------------------------------------------------------------------
def columns(context: Context, destination: str = "orders") -> dict[str, Any]:
    """The table's columns that are not those of every table."""
    known = column_types(domain_of(context).log("others").refresh().metadata)
    found = column_types(domain_of(context).log(destination).refresh().metadata)
    return {name: kind for name, kind in found.items() if name not in known}


def test_column_stays_when_its_promotion_ends(context: Context) -> None:
    """C7: it keeps its type, so the property can be promoted again under that type only."""
    assert columns(context) == {}
    promote(context, "amount")
    promote(context, "region")
    assert columns(context) == {"amount": "double", "region": "string"}
    for wrong in ("amount:long", "Amount:double"):
        with pytest.raises(InvalidDestinationError, match="column 'amount' of type double .*Promote amount:double"):
            promote(context, wrong)
    promote(context)
    context.producer("orders").send(text="a", properties={"amount": 1.0, "region": "eu"})
    promote(context, "count", "amount")
    context.producer("orders").send(text="b", properties={"amount": 1.0, "region": "eu"})
    assert columns(context) == {"amount": "double", "region": "string", "count": "integer"}
    assert [file.promoted for file in files(context)] == [frozenset(), {"amount", "count"}]
    with pytest.raises(InvalidDestinationError, match="Promote count:int"):
        promote(context, "count:long")


def test_compaction_fills_the_columns_of_older_files(context: Context) -> None:
    """C7, C13: by the promotions of that moment, from rows in memory and from files."""
    producer = context.producer("orders")
    for n in range(4):
        producer.send(text=str(n), properties={"amount": float(n), "region": "eu"})
    promote(context, "amount")
    for n in range(4, 8):
        producer.send(text=str(n), properties={"amount": float(n), "region": "eu"})
    promote(context, "amount", "region")
    compact(DeltaLog(domain_of(context).log("orders").storage, "orders"))
    (file,) = files(context)
    assert file.promoted == {"amount", "region"}
    assert (file.statistics["minValues"]["amount"], file.statistics["maxValues"]["amount"]) == (0.0, 7.0)
    assert found(context, "amount >= 6 AND region = 'eu'") == ["6", "7"]
    with domain_of(context).log("orders").storage.open_input(file.path) as source:
        assert pq.ParquetFile(source).schema_arrow.names[-2:] == ["amount", "region"]


def test_log_reads_back_from_a_delta_checkpoint(context: Context) -> None:
    """C7, C3: columns, their statistics and the declaration."""
    promote(context, "amount")
    context.producer("orders").send(text="a", properties={"amount": 1.5})
    log = domain_of(context).log("orders")
    write_checkpoint(log.storage, log.refresh())
    again = DeltaLog(log.storage, "orders").refresh()
    assert again.destination.promoted_properties == ("amount:double",)
    assert [file.promoted for file in again.member_files(0).files] == [{"amount"}]
    assert column_types(again.metadata)["amount"] == "double"


def test_other_delta_readers_see_the_columns(tmp_path: Path) -> None:
    """C7, C3: by the property's name, NULL in older files. Their statistics are ours alone: not every file has them."""
    root = str(tmp_path / "domain")
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="old", properties={"amount": 9.0})
        apply(
            root,
            {"destinations": {"orders": {"kind": "queue", "promotedProperties": ["amount:double", "urgent:boolean"]}}},
        )
        context.producer("orders").send_many(
            {"text": f"{n}", "properties": {"amount": n / 2, "urgent": n % 2 == 0}} for n in range(4)
        )
        context.producer("orders").send(text="other", properties={"amount": "much", "urgent": False})
    table = deltalake.DeltaTable(f"{root}/orders")
    rows = table.to_pyarrow_table(columns=["text", "amount", "urgent"])
    by_text = {row["text"]: (row["amount"], row["urgent"]) for row in rows.to_pylist()}
    assert by_text["old"] == (None, None)
    assert by_text["3"] == (1.5, False)
    assert by_text["other"] == (None, False)
    assert duckdb.sql("select count(*) from rows where amount >= 1 and not urgent").limit(1).fetchall() == [(1,)]
    frame = polars.read_delta(f"{root}/orders", use_pyarrow=True).filter(polars.col("amount") > 0.5)
    assert sorted(frame["text"].to_list()) == ["2", "3"]
    assert table.to_pyarrow_table(filters=[("amount", ">", 1.0)]).column("text").to_pylist() == ["3"]
    actions = {row["num_records"]: row for row in pa.table(table.get_add_actions(flatten=True)).to_pylist()}
    assert (actions[4]["min.ordinal"], actions[4]["max.ordinal"], actions[4]["null_count.ordinal"]) == (0, 3, 0)
    assert not {name for name in actions[4] if "amount" in name or "urgent" in name}


# -- transfers, copies and order ---------------------------------------------------------------------------------------
def test_moves_between_destinations_with_other_promotions(context: Context) -> None:
    """C7, C18: the columns are those of the target; what goes to an error destination and back too (C8)."""
    promote(context, "region", destination="others")
    promote(context, "amount", redelivery_limit=0, error_destination="others")
    context.producer("orders").send_many(
        {"text": str(n), "properties": {"amount": n / 2, "region": "eu"}} for n in range(6)
    )
    assert move(domain_of(context), records_of(context), MoveOrder("orders", "others", limit=3), wait_s=5).moved == 3
    assert [(f.rows, f.promoted) for f in files(context, "others")] == [(3, {"region"})]
    with context.consumer("orders") as consumer:
        reject_next(consumer, 3)
        assert consumer.receive(0) is None
    assert {f.promoted for f in files(context, "others")} == {frozenset(["region"])}
    assert sum(f.rows for f in files(context, "others")) == 6
    redrive(domain_of(context), records_of(context), RedriveOrder("others"), 5)
    assert {f.promoted for f in files(context)} == {frozenset(["amount"])}
    assert found(context, "amount > 2 AND region = 'eu'") == ["5"]


def test_backup_keeps_columns_and_declaration(tmp_path: Path) -> None:
    """C7, C19"""
    root, copy = str(tmp_path / "domain"), str(tmp_path / "restored")
    apply(root, {"destinations": {"orders": {"kind": "queue", "promotedProperties": ["amount:double"]}}})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(n), "properties": {"amount": n / 2}} for n in range(4))
        back_up(domain_of(context), records_of(context), str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), copy)
    with connect(copy, housekeeping=False) as context:
        context.producer("orders").send(text="new", properties={"amount": 9.5})
        assert found(context, "amount > 1") == ["3", "new"]
        assert {file.promoted for file in files(context)} == {frozenset(["amount"])}


def test_destination_is_sorted_by_the_column(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T15, C7: where it is complete and of the key's type; messages from before come in the same order."""
    keys = ("count descending long", "amount ascending float")
    promote(context, destination_keys=keys)
    producer = context.producer("orders")
    chance = random.Random(4)
    sent = [(chance.randrange(5), chance.randrange(100) / 8) for _ in range(60)]
    for n, (count, amount) in enumerate(sent):
        if n == 20:
            promote(context, "count", "amount", destination_keys=keys)
        producer.send(text=str(n), properties={"count": count if n % 7 else str(count), "amount": amount})
    read = set()
    read_stored = data_files.read_stored

    def reading(storage: Any, file: Any, part: Any, columns: list[str], *rest: Any) -> Any:
        read.add(tuple(columns))
        return read_stored(storage, file, part, columns, *rest)

    monkeypatch.setattr(sort_order, "read_stored", reading)
    with context.consumer("orders") as consumer:
        got = texts(consumer, 60)
    expected = sorted(range(60), key=lambda n: (-sent[n][0], sent[n][1], n))
    assert got == [str(n) for n in expected]
    assert read == {("properties", "JMSXGroupID"), ("count", "properties", "JMSXGroupID")}  # a double is no float key


# -- the declaration -------------------------------------------------------------------------------------------------
def test_module_file_names_what_is_wrong(tmp_path: Path) -> None:
    """C7, C16"""
    for wrong, says in (
        ('["JMSType:string"]', "promotedProperties.0. is .*begin with JMS"),
        ('["amount"]', "such as 'amount:double'"),
        ('["a:int", "A:int"]', "names 'a' and 'A'"),
    ):
        module = tmp_path / "module.yaml"
        module.write_text(f"destinations:\n  orders:\n    kind: queue\n    promotedProperties: {wrong}\n")
        with pytest.raises(ModuleFileError, match=rf"module.yaml:4: destinations.orders.{says}|{says}"):
            apply(str(tmp_path / "domain"), str(module))


def test_acknowledgement_table_has_no_promoted_columns(context: Context) -> None:
    """C7, C14: compaction tells the two tables apart by their columns."""
    wanted = Destination("new", "queue", promoted_properties=("acknowledged:long", "my_acknowledged_ms:long"))
    apply_destinations(domain_of(context), [wanted], lambda destination, member: False)
    domain = Domain(context.root)
    assert "acknowledged" not in column_types(domain.acknowledgements("new").refresh().metadata)
    assert domain.acknowledgements("new").snapshot.destination.promoted_properties == ()
    for n in range(9):
        context.producer("new").send(text=str(n), properties={"my_acknowledged_ms": n})
    compact(domain_of(context).log("new"))
    assert [(f.rows, f.promoted) for f in files(context, "new")] == [(9, {"acknowledged", "my_acknowledged_ms"})]
    with context.consumer("new") as consumer:
        assert texts_now(consumer, 9) == [str(n) for n in range(9)]
    assert sum(row.messages for row in views.acknowledgements(domain_of(context), records_of(context), "new")) == 9
