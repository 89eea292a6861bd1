"""A selector on a table of messages, vectorised.

`columns` reads the columns into operands: lanes of numbers, texts and booleans, null where a row's value has another type.
Here a condition becomes a boolean for each row, null where it is unknown, and AND, OR and NOT are Kleene's. Literals alone
make a scalar. The theory is that of `matching`.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.selector.columns import Operand, Rows
from spark_jms.core.selector.matching import python_like
from spark_jms.core.selector.tree import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Expression,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Not,
    Or,
    Sign,
    like_parts,
)
from spark_jms.core.utf8 import readable

MIN_BATCH_ROWS = 4096
_UNKNOWN = pa.scalar(None, pa.bool_())
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_CALCULATE: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": pc.add,
    "-": pc.subtract,
    "*": pc.multiply,
    "/": pc.divide,
}


def mask(
    tree: Expression,
    columns: tuple[str, ...],
    table: pa.Table | pa.RecordBatch,
    promoted: Collection[str] = (),
) -> pa.BooleanArray:
    """Where the selector is TRUE, without nulls; needs the columns `columns`, ignores the others. The properties in
    `promoted` are columns of the table, complete ones (core/promoted_columns.py)."""
    missing = [name for name in columns if name not in table.schema.names]
    if missing:
        present = ", ".join(table.schema.names)
        raise ValueError(f"the selector needs column {', '.join(missing)}; the table has {present}")
    rows = table.num_rows
    if isinstance(table, pa.RecordBatch):
        batches = [table]
    elif not columns:
        return _mask(tree, Rows(None, rows))
    else:
        table = table.select(list(columns))
        if len(table.column(0).chunks) * MIN_BATCH_ROWS > rows:  # many small chunks cost more than one copy
            table = table.combine_chunks()
        batches = table.to_batches()
    found = [_mask(tree, Rows(batch, batch.num_rows, promoted)) for batch in batches]
    return pa.concat_arrays(found) if found else pa.array([], pa.bool_())


def _mask(tree: Expression, rows: Rows) -> Any:
    true = pc.fill_null(_truth(tree, rows), False)
    return pa.repeat(true, rows.count) if isinstance(true, pa.Scalar) else true


# -- conditions --------------------------------------------------------------------------------------------------------
def _truth(node: Expression, rows: Rows) -> Any:
    match node:
        case And(operands):
            return reduce(pc.and_kleene, (_truth(operand, rows) for operand in operands))
        case Or(operands):
            return reduce(pc.or_kleene, (_truth(operand, rows) for operand in operands))
        case Not(operand):
            return pc.invert(_truth(operand, rows))
        case Comparison(op, left, right):
            return _compare(op, _operand(left, rows), _operand(right, rows))
        case Between(operand, low, high, negated):
            value, least, most = (_operand(part, rows) for part in (operand, low, high))
            if negated:
                return pc.or_kleene(_compare("<", value, least), _compare(">", value, most))
            return pc.and_kleene(_compare(">=", value, least), _compare("<=", value, most))
        case In(name, values, negated):
            value = rows.operand(name.name)
            return _text_test(value, lambda texts: pc.is_in(texts, pa.array(values, texts.type)), negated)
        case Like(name, pattern, escape, negated):
            value = rows.operand(name.name)
            return _text_test(value, lambda texts: _like(texts, pattern, escape), negated)
        case IsNull(name, negated):
            known = rows.operand(name.name).known()
            return known if negated else pc.invert(known)
        case _:  # a name or TRUE / FALSE standing as a condition: x means x = TRUE
            return _compare("=", _operand(node, rows), _operand(Literal(True), rows))


def _compare(op: str, left: Operand, right: Operand) -> Any:
    """Like types only: unlike types are false, NULL is unknown."""
    results = []
    if left.longs is not None and right.longs is not None:
        results.append(_COMPARE[op](left.longs, right.longs))
    if left.doubles is not None or right.doubles is not None:
        wide_left, wide_right = left.as_doubles(), right.as_doubles()
        if wide_left is not None and wide_right is not None:
            results.append(_COMPARE[op](wide_left, wide_right))
    if op in ("=", "<>"):
        if left.texts is not None and right.texts is not None:
            results.append(_COMPARE[op](*_of_one_type(left.texts, right.texts)))
        if left.booleans is not None and right.booleans is not None:
            results.append(_COMPARE[op](left.booleans, right.booleans))
    if results and len(left.lanes()) == len(right.lanes()) == 1:  # no value is unlike another
        return results[0]
    return pc.coalesce(*results, _false_where(pc.and_(left.known(), right.known())))


def _false_where(known: Any) -> Any:
    """False, or NULL where it is not known."""
    return pc.if_else(known, False, _UNKNOWN)


def _of_one_type(left: Any, right: Any) -> tuple[Any, Any]:
    """Arrow has two types of text."""
    if left.type == right.type:
        return left, right
    return pc.cast(left, pa.large_string()), pc.cast(right, pa.large_string())


def _text_test(value: Operand, test: Callable[[Any], Any], negated: bool) -> Any:
    """NULL is unknown; a value that is not a string fails the test and its negation."""
    if value.texts is None:
        return _false_where(value.known())
    passed = test(value.texts)
    passed = pc.if_else(pc.is_valid(value.texts), pc.invert(passed) if negated else passed, _UNKNOWN)
    return passed if len(value.lanes()) == 1 else pc.coalesce(passed, _false_where(value.known()))


def _like(texts: Any, pattern: str, escape: str | None) -> Any:
    """pyarrow's own match_like is not used: it has no escape character, and reads a last backslash wrongly."""
    parts = like_parts(pattern, escape)
    assert parts is not None
    if not any(wildcard for _, wildcard in parts):
        return pc.equal(texts, "".join(character for character, _ in parts))
    regex = "".join({"%": ".*", "_": "."}[c] if wildcard else _escaped(c) for c, wildcard in parts)
    try:
        return pc.match_substring_regex(texts, rf"\A(?s:{regex})\z")
    except pa.ArrowInvalid:  # a pattern of thousands of characters may be too large for RE2
        return _like_by_value(texts, pattern, escape)


def _escaped(character: str) -> str:
    if character.isalnum() or not character.isascii():
        return character
    return f"\\x{{{ord(character):x}}}"


def _like_by_value(texts: Any, pattern: str, escape: str | None) -> Any:
    encoded = texts.dictionary_encode()
    regex = python_like(pattern, escape)
    found = [
        text is not None and regex.fullmatch(text) is not None for text in readable(encoded.dictionary).to_pylist()
    ]
    return pa.array(found, pa.bool_()).take(encoded.indices)


# -- operands ----------------------------------------------------------------------------------------------------------
def _operand(node: Expression, rows: Rows) -> Operand:
    match node:
        case Literal(value):
            return _constant(value)
        case Name(name):
            return rows.operand(name)
        case Sign(op, operand):
            return _signed(op, _operand(operand, rows))
        case Arithmetic(first, rest):
            result = _operand(first, rows)
            for op, operand in rest:
                result = _calculate(op, result, _operand(operand, rows))
            return result
        case _:  # a condition in parentheses: a boolean, NULL where it is unknown
            return Operand(booleans=_truth(node, rows))


def _constant(value: str | int | float | bool) -> Operand:
    if isinstance(value, str):
        return Operand(texts=pa.scalar(value))
    if isinstance(value, bool):
        return Operand(booleans=pa.scalar(value))
    if isinstance(value, int):
        return Operand(longs=pa.scalar(value, pa.int64()))
    return Operand(doubles=pa.scalar(value))


def _signed(op: str, value: Operand) -> Operand:
    if op == "+":
        return Operand(value.longs, value.doubles)
    return Operand(*(None if lane is None else pc.negate(lane) for lane in (value.longs, value.doubles)))


def _calculate(op: str, left: Operand, right: Operand) -> Operand:
    """Java long where both are exact (overflow wraps, division by zero is NULL), else double; NULL if not numbers."""
    longs = doubles = None
    if left.longs is not None and right.longs is not None:
        longs = _divide_long(left.longs, right.longs) if op == "/" else _CALCULATE[op](left.longs, right.longs)
    if left.doubles is not None or right.doubles is not None:
        wide_left, wide_right = left.as_doubles(), right.as_doubles()
        if wide_left is not None and wide_right is not None:
            doubles = _CALCULATE[op](wide_left, wide_right)
            if longs is not None:
                exact = pc.and_(pc.is_valid(left.longs), pc.is_valid(right.longs))
                doubles = pc.if_else(exact, pa.scalar(None, pa.float64()), doubles)
    return Operand(longs, doubles)


def _divide_long(left: Any, right: Any) -> Any:
    """Java truncates towards zero, as Arrow does; the one overflow, least / -1, gives the least long."""
    divisor = pc.if_else(pc.equal(right, 0), pa.scalar(None, pa.int64()), right)
    return pc.if_else(pc.equal(divisor, -1), pc.negate(left), pc.divide(left, divisor))
