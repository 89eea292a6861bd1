"""Every Spark type as a column of a sender, one by one, as Spark's planner hands it to the sink: no session, no JVM (C2)."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.errors import MessageFormatError
from spark_jms.spark.options import parse_options
from spark_jms.spark.sink import JmsqStreamWriter, JmsqWriter
from spark_jms.testing import memory_domain

PROPERTIES = (
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.StringType(),
    t.StringType("UTF8_LCASE"),
)
OTHERS = (
    t.NullType(),
    t.BinaryType(),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.TimeType(),
    t.DecimalType(38, 10),
    t.DayTimeIntervalType(),
    t.YearMonthIntervalType(),
    t.CalendarIntervalType(),
    t.VariantType(),
    t.GeometryType(0),
    t.GeographyType(4326),
    t.CharType(3),  # Spark replaces these two by string before it asks for a writer
    t.VarcharType(3),
)
NESTED = (
    *(t.ArrayType(kind) for kind in OTHERS),
    *(t.MapType(t.StringType(), kind) for kind in OTHERS),
    *(t.StructType([t.StructField("a", kind)]) for kind in OTHERS),
    t.MapType(t.TimestampType(), t.StringType()),
    t.ArrayType(t.ArrayType(t.YearMonthIntervalType())),
)
ALL = (*PROPERTIES, *OTHERS, *NESTED)


def refused(*columns: tuple[str, t.DataType]) -> str:
    """The error of a writer for these columns, in a batch and in a stream."""
    schema = t.StructType([t.StructField(name, kind) for name, kind in columns])
    with memory_domain("file", orders="queue") as root:
        options = parse_options({"root": root, "destination": "orders"})
        errors = set()
        for kind in (JmsqWriter, JmsqStreamWriter):
            with pytest.raises(MessageFormatError) as caught:
                kind(options, schema, False)
            errors.add(str(caught.value))
    (error,) = errors
    return error


def test_no_atomic_type_of_spark_is_forgotten() -> None:
    """C2: a new release of Spark may bring more."""
    abstract = {t.AtomicType, t.NumericType, t.IntegralType, t.FractionalType, t.DatetimeType, t.AnyTimeType}
    abstract |= {t.SpatialType, t.AnsiIntervalType}
    atomic = {kind for kind in vars(t).values() if isinstance(kind, type) and issubclass(kind, t.AtomicType)}
    assert atomic - abstract <= {type(kind) for kind in ALL}


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_extra_column_gives_the_list_of_columns(kind: t.DataType) -> None:
    """C2"""
    error = refused(("text", t.StringType()), ("timestamp", kind))
    assert error.startswith(
        f"unknown message column(s) 'timestamp': accepted are {', '.join(COLUMNS)}; put other values"
    )


@pytest.mark.parametrize("kind", [*OTHERS, *NESTED], ids=str)
def test_property_of_another_type_is_named(kind: t.DataType) -> None:
    """C2"""
    properties = t.StructType([t.StructField("color", t.StringType()), t.StructField("odd", kind)])
    error = refused(("text", t.StringType()), ("properties", properties))
    assert error.startswith("properties of type odd ")
    assert error.endswith(
        "cannot be message properties: cast them to one of boolean, byte, short, int, long, float, double, string"
    )


@pytest.mark.parametrize("kind", [kind for kind in ALL if not isinstance(kind, (t.StringType, t.NullType))], ids=str)
def test_text_of_another_type_is_named(kind: t.DataType) -> None:
    """C2"""
    error = refused(("text", kind))
    assert error.startswith("column 'text' is ")
    assert error.endswith("but must be string: cast(col as string)")


@pytest.mark.parametrize("column", ["JMSDeliveryTime", "JMSExpiration"])
def test_times_may_be_timestamps(column: str) -> None:
    """C2: as docs/MESSAGES.md allows."""
    schema = t.StructType([t.StructField("text", t.StringType()), t.StructField(column, t.TimestampType())])
    with memory_domain("file", orders="queue") as root:
        JmsqWriter(parse_options({"root": root, "destination": "orders"}), schema, False)


@pytest.mark.parametrize("column", ["JMSDeliveryTime", "JMSExpiration"])
def test_time_without_a_zone_is_refused_at_planning(column: str) -> None:
    """C2: by `write`, `writeStream` and INSERT, with the cast of SQL."""
    error = refused(("text", t.StringType()), (column, t.TimestampNTZType()))
    assert error.startswith(f"column {column!r} is a time without a time zone")
    assert error.endswith(f"cast({column} as timestamp) takes it as one in the session's time zone")
