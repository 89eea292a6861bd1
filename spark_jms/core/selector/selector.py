"""Message selectors: the JMS 2.0 grammar (section 3.8.1) on one message or on a table of messages.

`Selector.parse(text)` returns None for an empty or blank text (no selector) and raises InvalidSelectorError for a wrong one.
A message is selected where the selector is TRUE; FALSE and unknown do not select.

Where the specification is open, or this implementation differs from it:

- Exact numbers, whatever their property type, are Java longs: overflow wraps, division truncates, division by zero is
  NULL (so the condition is unknown). Approximate numbers are Java doubles, division by zero is IEEE's; a float is
  rounded to 32 bits when it is read and then widened, and arithmetic on it is that of doubles. A long is widened to a
  double where it meets one. Hexadecimal, octal and binary literals fill 64 bits, so 0xFFFFFFFFFFFFFFFF is -1.
- Arithmetic on a string or a boolean is NULL. Comparing unlike types is false, and so is ordering two strings or two
  booleans; where the text shows it (`name > 'a'`, `'a' + 1`, `TRUE = 0`, `a + 1 = 'x'`) the selector is refused.
- An operator on a value of a wrong type is false, and so is the operator with NOT: a string is neither BETWEEN nor NOT
  BETWEEN, a number neither IN ('a') nor NOT IN ('a'), neither LIKE nor NOT LIKE 'a'. A NOT before the condition negates:
  NOT n IN ('a') is true for a number n.
- A name may stand as a condition: `urgent` is `urgent = TRUE`. A condition in parentheses is a boolean value, NULL where
  it is unknown: `(a > 5) = TRUE`, `(a > 5) <> (b > 5)`.
- IN takes strings only, as the specification has it. LIKE counts code points, % and _ match line ends, and the escape
  character makes any character stand for itself.
- Property values are not converted: '5' sent as a string is not the number 5. JMSDeliveryMode is the string
  'PERSISTENT' or 'NON_PERSISTENT'.
- Of the headers, JMSDestination, JMSReplyTo, JMSExpiration, JMSRedelivered and JMSDeliveryTime are refused by name, as
  JMS does. JMSXDeliveryCount is refused as well: JMS allows it, but a count belongs to a subscription's record set and
  changes, whereas the planner evaluates a selector on the stored message alone and remembers what it refuses.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from spark_jms.core.messages.arrays import arrow_scalar
from spark_jms.core.messages.properties import DELIVERY_MODES, HEADER_COLUMNS, PROPERTIES_COLUMN, Operand, Rows
from spark_jms.core.messages.types import readable
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
    evaluate,
    like_parts,
    names,
    python_like,
)
from spark_jms.errors import InvalidSelectorError

__all__ = ["HEADER_COLUMNS", "PROPERTIES_COLUMN", "InvalidSelectorError", "Selector"]

_INTEGER_HEADERS = frozenset(("JMSPriority", "JMSTimestamp", "JMSXGroupSeq"))
_EXACT_DOUBLE = 2**53
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
MIN_BATCH_ROWS = 4096
_UNKNOWN = arrow_scalar(None, pa.bool_())
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


@dataclass(frozen=True)
class Selector:
    """A checked message selector; made by `parse`, immutable, hashable, picklable; equal where the text is equal.

    `mask` and `matches` agree on every message. Neither reads a clock or anything but its arguments.
    """

    text: str

    @classmethod
    def parse(cls, text: str | None) -> Selector | None:
        """The selector of a text, None for None or blank. At most 128 KiB, nested at most 256 deep."""
        if text is None:
            return None
        if not isinstance(text, str):
            raise InvalidSelectorError(f"A selector is text, found {type(text).__name__}.")
        if not text.strip():
            return None
        _tree(text)
        return cls(text)

    @property
    def tree(self) -> Expression:
        """The syntax tree (tree.py)."""
        return _tree(self.text)

    def means(self, other: Selector) -> bool:
        """They are the same but for blanks, parentheses that change nothing and the case of keywords."""
        return self.text == other.text or repr(self.tree) == repr(
            other.tree
        )  # 1, 1.0 and TRUE are equal, but not alike

    @property
    def identifiers(self) -> frozenset[str]:
        """The names it reads: headers and properties."""
        return _identifiers(self.text)

    @property
    def columns(self) -> tuple[str, ...]:
        """The message columns `mask` needs; `properties` where any name is not a header column."""
        return self.columns_with(frozenset())

    def columns_with(self, promoted: frozenset[str]) -> tuple[str, ...]:
        """The columns `mask` needs of rows that have these properties as columns."""
        return _columns(self.text, promoted & self.identifiers)

    def mask(self, table: pa.Table | pa.RecordBatch, promoted: frozenset[str] = frozenset()) -> pa.BooleanArray:
        """True for the rows where the selector is TRUE; the table holds at least `columns_with(promoted)`."""
        return mask(self.tree, self.columns_with(promoted), table, promoted)

    def matches(self, headers: Mapping[str, object], properties: Mapping[str, object]) -> bool:
        """Whether the selector is TRUE for one message of typed Python values; a missing name is NULL."""

        def lookup(name: str) -> object:
            if name not in HEADER_COLUMNS:
                return properties.get(name)
            value = headers.get(name, properties.get(name))
            if name != "JMSDeliveryMode":
                return value
            return value if value in DELIVERY_MODES.values() else DELIVERY_MODES.get(value)

        return evaluate(self.tree, lookup) is True

    def prunable(self) -> tuple[tuple[str, str, object], ...]:
        """(name, op, literal) comparisons that every selected message fulfils, to prune by minimum and maximum.

        Values are as stored (JMSDeliveryMode is 2 or 1). Left out: what has the wrong type for a header, and numbers
        beyond 2**53 where Java's widening to double and an exact comparison may differ.
        """
        return tuple(item for item in _conjuncts(self.tree) if _is_safe(*item))

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=1024)
def _tree(text: str) -> Expression:
    from spark_jms.core.selector.grammar import parse_tree  # lark is loaded with the first selector

    return parse_tree(text)


@lru_cache(maxsize=1024)
def _identifiers(text: str) -> frozenset[str]:
    return frozenset(names(_tree(text)))


@lru_cache(maxsize=1024)
def _columns(text: str, promoted: frozenset[str]) -> tuple[str, ...]:
    wanted = _identifiers(text)
    columns = (*(name for name in HEADER_COLUMNS if name in wanted), *sorted(promoted))
    return columns if len(columns) == len(wanted) else (*columns, PROPERTIES_COLUMN)


def _conjuncts(node: Expression) -> Iterator[tuple[str, str, object]]:
    match node:
        case And(operands):
            for operand in operands:
                yield from _conjuncts(operand)
        case Comparison(op, Name(name), Literal(value)):
            yield from _stored(name, op, value)
        case Comparison(op, Literal(value), Name(name)):
            yield from _stored(name, _FLIPPED[op], value)
        case Between(Name(name), low, high, False):
            if isinstance(low, Literal):
                yield name, ">=", low.value
            if isinstance(high, Literal):
                yield name, "<=", high.value
        case In(Name(name), (value,), False):
            yield from _stored(name, "=", value)
        case Name(name):
            yield name, "=", True


def _stored(name: str, op: str, value: object) -> Iterator[tuple[str, str, object]]:
    if name == "JMSDeliveryMode":
        modes = [number for number, mode in DELIVERY_MODES.items() if mode == value]
        yield from ((name, op, number) for number in modes)
    else:
        yield name, op, value


def _is_safe(name: str, op: str, value: object) -> bool:
    """Whether a planner may compare the literal with minimum and maximum by Python's rules."""
    if name == "JMSDeliveryMode":
        return op in ("=", "<>") and not isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return name not in HEADER_COLUMNS or (isinstance(value, str) and name not in _INTEGER_HEADERS)
    if name in HEADER_COLUMNS and name not in _INTEGER_HEADERS:
        return False
    return (name in _INTEGER_HEADERS and isinstance(value, int)) or abs(value) < _EXACT_DOUBLE


# -- on a table of messages --------------------------------------------------------------------------------------------
def mask(
    tree: Expression,
    columns: tuple[str, ...],
    table: pa.Table | pa.RecordBatch,
    promoted: Collection[str] = (),
) -> pa.BooleanArray:
    """Where the selector is TRUE, without nulls; needs the columns `columns`, ignores the others. The properties in
    `promoted` are columns of the table, complete ones (`PromotedColumns`).

    `Rows` reads the columns into operands: lanes of numbers, texts and booleans, null where a row's value has another type. Here a
    condition becomes a boolean for each row, null where it is unknown, and AND, OR and NOT are Kleene's. Literals alone make a
    scalar. The theory is that of tree.py.
    """
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
