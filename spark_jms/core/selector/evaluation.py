"""A selector on a table of messages, vectorised (feature C7).

`selector_columns` reads the columns into operands: lanes of numbers, texts and booleans with one kind per row. Here a
condition becomes two bit vectors, true and false; a row that is in neither is unknown. The theory is that of
`selector_match`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.selector.columns import BOOLEAN, DOUBLE, LONG, NULL, TEXT, Array, Bits, Operand, Rows
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

MIN_BATCH_ROWS = 4096
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_CALCULATE: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}


@dataclass(frozen=True, slots=True)
class _Truth:
    """Rows where a condition is true, rows where it is false; never both."""

    true: Bits
    false: Bits

    def negated(self, negated: bool = True) -> _Truth:
        return _Truth(self.false, self.true) if negated else self

    def __and__(self, other: _Truth) -> _Truth:
        return _Truth(self.true & other.true, self.false | other.false)

    def __or__(self, other: _Truth) -> _Truth:
        return _Truth(self.true | other.true, self.false & other.false)


def mask(tree: Expression, columns: tuple[str, ...], table: pa.Table | pa.RecordBatch) -> Bits:
    """Where the selector is TRUE; needs the message columns `columns`, ignores the others."""
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
    found = [_mask(tree, Rows(batch, batch.num_rows)) for batch in batches]
    return np.concatenate(found) if found else np.zeros(0, np.bool_)


def _mask(tree: Expression, rows: Rows) -> Bits:
    with np.errstate(all="ignore"):
        return np.array(np.broadcast_to(_truth(tree, rows).true, (rows.count,)))


# -- conditions --------------------------------------------------------------------------------------------------------
def _truth(node: Expression, rows: Rows) -> _Truth:
    match node:
        case And(operands):
            result = _truth(operands[0], rows)
            for operand in operands[1:]:
                result = result & _truth(operand, rows)
            return result
        case Or(operands):
            result = _truth(operands[0], rows)
            for operand in operands[1:]:
                result = result | _truth(operand, rows)
            return result
        case Not(operand):
            return _truth(operand, rows).negated()
        case Comparison(op, left, right):
            return _compare(op, _operand(left, rows), _operand(right, rows))
        case Between(operand, low, high, negated):
            value, least, most = (_operand(part, rows) for part in (operand, low, high))
            if negated:
                return _compare("<", value, least) | _compare(">", value, most)
            return _compare(">=", value, least) & _compare("<=", value, most)
        case In(name, values, negated):
            value = rows.operand(name.name)
            return _text_test(value, lambda texts: pc.is_in(texts, pa.array(values, texts.type)), negated)
        case Like(name, pattern, escape, negated):
            value = rows.operand(name.name)
            return _text_test(value, lambda texts: _like(texts, pattern, escape), negated)
        case IsNull(name, negated):
            null = rows.operand(name.name).kinds == NULL
            return _Truth(null, ~null).negated(negated)
        case _:  # a name or TRUE / FALSE standing as a condition: x means x = TRUE
            return _compare("=", _operand(node, rows), _operand(Literal(True), rows))


def _compare(op: str, left: Operand, right: Operand) -> _Truth:
    """Like types only: unlike types are false, NULL is unknown."""
    known = (left.kinds != NULL) & (right.kinds != NULL)
    true = np.zeros(known.shape, np.bool_)
    exact = (left.kinds == LONG) & (right.kinds == LONG)
    if exact.any():
        true |= exact & _COMPARE[op](left.longs, right.longs)
    approximate = left.numbers() & right.numbers() & ~exact
    if approximate.any():
        true |= approximate & _COMPARE[op](left.as_doubles(), right.as_doubles())
    if op in ("=", "<>"):
        texts = (left.kinds == TEXT) & (right.kinds == TEXT)
        if texts.any():
            same = _same_text(left.texts, right.texts)
            true |= texts & (same if op == "=" else ~same)
        booleans = (left.kinds == BOOLEAN) & (right.kinds == BOOLEAN)
        if booleans.any():
            true |= booleans & _COMPARE[op](left.booleans, right.booleans)
    return _Truth(true, known & ~true)


def _same_text(left: Any, right: Any) -> Bits:
    if isinstance(left, str):
        left, right = right, left
    if isinstance(left, str):
        return np.array([left == right])
    return _bits(pc.equal(left, pa.scalar(right, left.type) if isinstance(right, str) else right))


def _bits(found: Any) -> Bits:
    """A pyarrow boolean array as bits, null as False."""
    return np.asarray(pc.fill_null(found, False).to_numpy(zero_copy_only=False), np.bool_)


def _text_test(value: Operand, test: Callable[[Any], Any], negated: bool) -> _Truth:
    """NULL is unknown; a value that is not a string fails the test and its negation."""
    texts = value.kinds == TEXT
    passed = _bits(test(value.texts)) if texts.any() else texts
    true = texts & (~passed if negated else passed)
    return _Truth(true, (value.kinds != NULL) & ~true)


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
    found = [text is not None and regex.fullmatch(text) is not None for text in encoded.dictionary.to_pylist()]
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
            truth = _truth(node, rows)
            return Operand(np.where(truth.true | truth.false, BOOLEAN, NULL).astype(np.int8), booleans=truth.true)


def _constant(value: str | int | float | bool) -> Operand:
    def kinds(kind: int) -> npt.NDArray[np.int8]:
        return np.array([kind], np.int8)

    if isinstance(value, str):
        return Operand(kinds(TEXT), texts=value)
    if isinstance(value, bool):
        return Operand(kinds(BOOLEAN), booleans=np.array([value]))
    if isinstance(value, int):
        return Operand(kinds(LONG), longs=np.array([value], np.int64))
    return Operand(kinds(DOUBLE), doubles=np.array([value]))


def _signed(op: str, value: Operand) -> Operand:
    kinds = np.where(value.numbers(), value.kinds, NULL).astype(np.int8)
    if op == "+":
        return Operand(kinds, value.longs, value.doubles)
    longs = None if value.longs is None else np.negative(value.longs)
    doubles = None if value.doubles is None else np.negative(value.doubles)
    return Operand(kinds, longs, doubles)


def _calculate(op: str, left: Operand, right: Operand) -> Operand:
    """Java long where both are exact (overflow wraps, division by zero is NULL), else double; NULL if not numbers."""
    exact = (left.kinds == LONG) & (right.kinds == LONG)
    approximate = left.numbers() & right.numbers() & ~exact
    kinds = np.where(exact, LONG, np.where(approximate, DOUBLE, NULL)).astype(np.int8)
    longs = doubles = None
    if exact.any():
        assert left.longs is not None
        assert right.longs is not None
        if op == "/":
            kinds[exact & (right.longs == 0)] = NULL
            longs = _divide_long(left.longs, right.longs)
        else:
            longs = _CALCULATE[op](left.longs, right.longs)
    if approximate.any():
        doubles = _CALCULATE[op](left.as_doubles(), right.as_doubles())
    return Operand(kinds, longs, doubles)


def _divide_long(left: npt.NDArray[np.int64], right: npt.NDArray[np.int64]) -> Array:
    """Java truncates towards zero, numpy floors; the one overflow, least / -1, gives the least long in both."""
    divisor = np.where(right == 0, 1, right)
    negative = divisor == -1  # numpy leaves least // -1 undefined
    safe = np.where(negative, 1, divisor)
    quotient = np.floor_divide(left, safe)
    quotient = quotient + ((quotient * safe != left) & ((left < 0) != (safe < 0)))
    return np.where(negative, np.negative(left), quotient)
