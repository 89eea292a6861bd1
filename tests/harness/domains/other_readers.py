"""Programs that read our Delta tables without spark-jms, as docs/MESSAGES.md names them: each counts the rows that a filter finds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import eq, ge, le
from typing import Any, NamedTuple

import duckdb
import polars
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder

_OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {"=": eq, "<=": le, ">=": ge}


class Filter(NamedTuple):
    """`op`: =, <=, >=, or NULL and NOT NULL, which have no value."""

    column: str
    op: str
    value: Any = None

    def of(self, column: Any, null: Callable[[Any], Any], valid: Callable[[Any], Any]) -> Any:
        """As an expression of a library."""
        if self.op in _OPERATORS:
            return _OPERATORS[self.op](column, self.value)
        return null(column) if self.op == "NULL" else valid(column)

    def sql(self, blob: str) -> str:
        column = f'"{self.column}"'
        return f"{column} {self.op} {_literal(self.value, blob)}" if self.op in _OPERATORS else f"{column} IS {self.op}"

    def count(self, values: list[Any]) -> int:
        """Of all values of the column, read without a filter."""
        return sum(bool(self.of(v, _is_none, _is_not_none)) for v in values if v is not None or self.op == "NULL")


def _is_none(value: Any) -> bool:
    return value is None


def _is_not_none(value: Any) -> bool:
    return value is not None


def _literal(value: Any, blob: str) -> str:
    if isinstance(value, bytes):
        return blob.format("".join(f"\\x{byte:02x}" for byte in value) if "BLOB" in blob else value.hex())
    if isinstance(value, float) and math.isinf(value):
        return f"CAST('{'-' if value < 0 else ''}Infinity' AS DOUBLE)"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value).upper()


def by_dataset(path: str, filters: Sequence[Filter]) -> list[int]:
    data = DeltaTable(path).to_pyarrow_dataset()
    conditions = [wanted.of(pc.field(wanted.column), pc.is_null, pc.is_valid) for wanted in filters]
    return [data.to_table(filter=condition).num_rows for condition in conditions]


def by_query_builder(path: str, filters: Sequence[Filter]) -> list[int]:
    queries = QueryBuilder().register("t", DeltaTable(path))
    found = [queries.execute("SELECT count(*) FROM t WHERE " + wanted.sql("X'{}'")).read_all() for wanted in filters]
    return [pa.table(rows).column(0)[0].as_py() for rows in found]


def by_duckdb(path: str, filters: Sequence[Filter]) -> list[int]:
    with duckdb.connect() as connection:
        connection.register("t", DeltaTable(path).to_pyarrow_dataset())
        found = [connection.execute("SELECT count(*) FROM t WHERE " + f.sql("'{}'::BLOB")).fetchall() for f in filters]
    return [rows[0][0] for rows in found]


def by_polars(path: str, filters: Sequence[Filter]) -> list[int]:
    data = polars.scan_delta(path, use_pyarrow=True)
    conditions = [f.of(polars.col(f.column), polars.Expr.is_null, polars.Expr.is_not_null) for f in filters]
    return [data.filter(condition).select(polars.len()).collect().item() for condition in conditions]


READERS: Mapping[str, Callable[[str, Sequence[Filter]], list[int]]] = {
    "to_pyarrow_dataset": by_dataset,
    "QueryBuilder": by_query_builder,
    "DuckDB": by_duckdb,
    "Polars": by_polars,
}


def filters_of(table: pa.Table) -> Iterator[Filter]:
    """For each column of simple values: NULL or not, and comparisons with its first, least and greatest value. The order of NaN
    is each library's own, so columns with NaN are compared by equality alone."""
    for field in table.schema:
        if pa.types.is_map(field.type):
            continue
        yield from (Filter(field.name, "NULL"), Filter(field.name, "NOT NULL"))
        values = [value for value in pc.unique(table[field.name]).to_pylist() if value is not None]
        numbers = [value for value in values if value == value]
        unordered = len(numbers) < len(values) or pa.types.is_boolean(field.type) or pa.types.is_binary(field.type)
        yield from (
            Filter(field.name, op, value)
            for value in dict.fromkeys((*numbers[:1], *sorted(numbers)[:1], *sorted(numbers)[-1:]))
            for op in (("=",) if unordered else _OPERATORS)
        )


def wrong_answers(path: str, reader: str) -> list[str]:
    """The filters by which this reader finds other rows than all rows of the table have."""
    table = DeltaTable(path).to_pyarrow_dataset().to_table()
    if not table.num_rows:
        raise AssertionError(f"{path} has no rows: nothing would be compared")
    filters = list(filters_of(table))
    expected = [wanted.count(table[wanted.column].to_pylist()) for wanted in filters]
    return [
        f"{wanted.column} {wanted.op} {wanted.value!r} finds {found} of {right}"
        for wanted, found, right in zip(filters, READERS[reader](path, filters), expected, strict=True)
        if found != right
    ]
