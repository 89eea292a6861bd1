"""The options that a table of Spark's catalog keeps in its schema (C1, C6)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import StructField, StructType

from spark_jms import apply
from spark_jms.errors import DomainError, InvalidDestinationError, OptionError
from spark_jms.settings.types import Use
from spark_jms.spark.browser import VIEW_SCHEMAS, view_schema
from spark_jms.spark.catalog import KEPT, options_of_table
from spark_jms.spark.datasource import JmsqDataSource
from spark_jms.spark.options import parse_options

PLACE = "GENERATION_EXPRESSION"  # of Spark: GeneratedColumn.GENERATION_EXPRESSION_METADATA_KEY


@pytest.fixture
def root(tmp_path: Path) -> str:
    apply(tmp_path / "domain", {"destinations": {"orders": {"kind": "queue"}}})
    return str(tmp_path / "domain")


def created(**options: str) -> StructType:
    """As Spark asks at CREATE TABLE … OPTIONS: it doubles each option."""
    doubled = {f"option.{name}": text for name, text in options.items()}
    schema = JmsqDataSource({"provider": "jmsq", "owner": "me", **options, **doubled}).schema()
    assert isinstance(schema, StructType)
    return schema


def stored_again(schema: StructType) -> StructType:
    """As a catalog stores it."""
    return StructType.fromJson(json.loads(schema.json()))


@pytest.mark.parametrize("view", [*VIEW_SCHEMAS, "messages", "all"])
def test_a_table_has_the_columns_of_its_view(root: str, view: str) -> None:
    """C1, C13: by the names and types that Spark reads from DDL, all nullable."""
    schema = created(root=root, destination="orders", view=view)
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in schema)
    assert columns == view_schema(parse_options({"root": root, "destination": "orders", "view": view}))
    assert all(field.nullable for field in schema)


def test_a_table_keeps_where_and_what(root: str) -> None:
    """C1: in the first column, where Spark removes it from DataFrames; nothing of Spark's own, and no default."""
    schema = created(Root=root, destination="orders", COLUMNS="text,sequence", selector="a = 1")
    assert [sorted(field.metadata) for field in schema] == [[PLACE], []]
    assert json.loads(schema[0].metadata[PLACE]) == {
        "root": root,
        "destination": "orders",
        "selector": "a = 1",
        "columns": "text,sequence",
    }
    for read in (JmsqDataSource.reader, JmsqDataSource.streamReader):
        reader: Any = read(JmsqDataSource({}), stored_again(schema))
        assert (reader.options.root, reader.options.destination) == (root, "orders")
        assert (reader.options.columns, reader.options.selector) == (("text", "sequence"), "a = 1")


def test_options_at_the_use_win_and_an_empty_one_clears(root: str) -> None:
    """C1, C6: in any case of letters."""
    schema = stored_again(created(root=root, destination="orders", selector="a = 1"))
    reader: Any = JmsqDataSource({"Destination": "invoices", "SELECTOR": ""}).reader(schema)
    assert (reader.options.destination, reader.options.selector) == ("invoices", None)


def test_a_root_is_kept_as_this_machine_finds_it(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: from any directory, and without the environment variable of CREATE TABLE."""
    monkeypatch.chdir(Path(root).parent)
    kept = options_of_table(created(root="domain", destination="orders"))
    monkeypatch.setenv("JMSQ_ROOT", "domain")
    assert kept == options_of_table(created(destination="orders")) == {"root": root, "destination": "orders"}
    monkeypatch.setenv("JMSQ_ROOT", "/elsewhere")
    reader: Any = JmsqDataSource({}).reader(created(root=root, destination="orders"))
    assert reader.options.root == root


def test_properties_of_a_table_are_not_options(root: str) -> None:
    """C1: TBLPROPERTIES come without the double; ours among them count, as in a pipeline's table_properties."""
    given = {"provider": "jmsq", "comment": "x", "team": "a", "root": root, "destination": "orders"}
    schema = JmsqDataSource(given).schema()
    assert isinstance(schema, StructType)
    assert options_of_table(schema) == {"root": root, "destination": "orders"}


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"maxMessagesPerTrigger": "5"}, r"does not keep option maxMessagesPerTrigger, only root, .* WITH \(maxMess"),
        ({"clientId": "a", "sendTimeout": "5 s"}, "does not keep option clientId, sendTimeout"),
        ({"detsination": "x"}, "no option 'detsination' .did you mean 'destination'"),
        ({"columns": "txt"}, "option columns is 'txt'"),
        ({"root": "s3://me:secret@host/x"}, r"the root s3://me:\*\*\*@host/x has a password"),
        ({"destination": ""}, r'needs option\("destination", …\)$'),
    ],
)
def test_create_table_refuses(root: str, options: dict[str, str], error: str) -> None:
    """C1, C6: an option that the table would not keep, a wrong one, and a password that all could read."""
    with pytest.raises(OptionError, match=error) as caught:
        created(**{"root": root, "destination": "orders", **options})
    assert "secret" not in str(caught.value)


def test_create_table_needs_domain_and_destination(root: str) -> None:
    """C1: if a destination came later, and the table's own folder were that of the destination, DROP TABLE would delete both."""
    with pytest.raises(InvalidDestinationError, match=r"no destination 'nowhere' in .* \(there are: orders\)"):
        created(root=root, destination="nowhere")
    with pytest.raises(DomainError, match="nowhere is not a spark-jms domain"):
        created(root=f"{root}/nowhere", destination="orders")


@pytest.mark.parametrize("read", [JmsqDataSource.reader, JmsqDataSource.streamReader])
def test_other_columns_over_a_table_are_refused(root: str, read: Any) -> None:
    """C1: at planning, before anything is claimed; and columns that ALTER TABLE has added."""
    schema = created(root=root, destination="orders", columns="sequence,text")
    with pytest.raises(
        OptionError, match=r"columns that CREATE TABLE gave it, \(seq.*text string\), but .* \(text string\)"
    ):
        read(JmsqDataSource({"columns": "text"}), schema)
    altered = StructType([*schema.fields, StructField("x", schema["text"].dataType)])
    with pytest.raises(OptionError, match=r"do not alter its columns\. The table was created with OPTIONS \(root '"):
        read(JmsqDataSource({}), altered)


def test_a_table_of_a_view_does_not_stream(root: str) -> None:
    """C1, C6"""
    schema = created(root=root, destination="orders", view="claims")
    with pytest.raises(
        OptionError, match=r"view is 'claims', which a streaming read.*OPTIONS \(root '.*', view 'claims'\)"
    ):
        JmsqDataSource({}).streamReader(schema)


@pytest.mark.parametrize("read", [JmsqDataSource.reader, JmsqDataSource.streamReader])
def test_a_root_that_moved_is_named(root: str, tmp_path: Path, read: Any) -> None:
    """C1: with what to do; the new root at the use works."""
    schema = created(root=root, destination="orders")
    Path(root).rename(tmp_path / "moved")
    with pytest.raises(
        DomainError, match=rf"{root} is not a spark-jms domain.*WITH \(root = '…'\).*drop the table, which leaves"
    ):
        read(JmsqDataSource({}), schema)
    assert read(JmsqDataSource({"root": str(tmp_path / "moved")}), schema).options.root == str(tmp_path / "moved")


@pytest.mark.parametrize("text", ["{", "[1]", "1"])
def test_damaged_options_of_a_table_are_named(root: str, text: str) -> None:
    """C1"""
    schema = created(root=root, destination="orders")
    schema[0].metadata[PLACE] = text
    with pytest.raises(OptionError, match="are damaged .*drop the table and create it again"):
        JmsqDataSource({}).reader(schema)


@pytest.mark.parametrize("use", Use)
def test_a_use_without_options_says_how_to_give_them(use: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1, C6: for a table that keeps none, and for each writer."""
    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    advice = {
        Use.READ: r"CREATE TABLE t USING jmsq OPTIONS \(root.*SELECT … FROM t WITH \(root = ",
        Use.READ_STREAM: r"CREATE TABLE t USING jmsq OPTIONS.*\.table\(\"t\"\)$",
        Use.WRITE: r"INSERT INTO t WITH \(root = '…', destination = '…'\).*AS SELECT cannot",
        Use.WRITE_STREAM: r"toTable too: \.option\(\"root\"",
    }
    for given, missing in (({}, "root"), ({"root": "/data"}, "destination")):
        with pytest.raises(OptionError, match=rf'needs option\("{missing}", …\).*{advice[use]}'):
            parse_options(given, use)


@pytest.mark.parametrize("write", [JmsqDataSource.writer, JmsqDataSource.streamWriter])
def test_a_writer_takes_no_options_from_a_schema(root: str, write: Any) -> None:
    """C1: even if a frame had those of a table, as a frame of Spark has not."""
    with pytest.raises(OptionError, match=r'needs option\("root", …\)'):
        write(JmsqDataSource({}), created(root=root, destination="orders"), False)


def test_kept_options_are_options() -> None:
    """C6"""
    from spark_jms.settings.options import OPTIONS

    assert set(KEPT) <= set(OPTIONS)
