"""A schema that is given to format("jmsq") (C1, C6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jms.errors import OptionError
from spark_jms.spark.datasource import JmsqDataSource

COLUMNS = StructType([StructField("sequence", LongType()), StructField("text", StringType())])
READERS: list[Callable[[JmsqDataSource, StructType], Any]] = [JmsqDataSource.reader, JmsqDataSource.streamReader]


def source(**options: str) -> JmsqDataSource:
    return JmsqDataSource({"root": "/nowhere", "destination": "orders", **options})


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "given",
    [
        StructType([StructField("text", StringType())]),
        StructType(COLUMNS.fields[::-1]),
        StructType([StructField("sequence", StringType()), StructField("text", StringType())]),
        StructType([StructField("Sequence", LongType()), StructField("text", StringType())]),
        StructType([*COLUMNS.fields, StructField("other", StringType())]),
    ],
)
def test_other_schema_is_refused_at_planning(
    reader: Callable[[JmsqDataSource, StructType], Any], given: StructType
) -> None:
    """C6: neither store nor table is opened, so nothing is claimed; the error names the option that chooses columns."""
    with pytest.raises(
        OptionError,
        match=r'a schema is given, \(.*text string.* read \(sequence bigint, text string\): .*option\("columns"',
    ):
        reader(source(columns="sequence,text"), given)


@pytest.mark.parametrize("reader", READERS)
def test_own_schema_is_accepted(reader: Callable[[JmsqDataSource, StructType], Any]) -> None:
    """C1, C6: a catalog keeps the schema of a table, with comments and without the option."""
    stored = StructType([StructField(one.name, one.dataType, False, {"comment": "x"}) for one in COLUMNS])
    reader(source(columns="sequence,text"), stored)


def test_schema_of_a_view_has_no_choice_of_columns() -> None:
    """C6, C16"""
    with pytest.raises(OptionError, match=r"\(destination string, begins timestamp, .*\): leave it out$"):
        source(view="usage").reader(COLUMNS)
