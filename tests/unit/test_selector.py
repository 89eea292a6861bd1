"""Message selectors: grammar, errors, three-valued logic, and `mask` against `matches` against a reference (C7)."""

from __future__ import annotations

import ctypes
import math
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jms.core.selector import HEADER_COLUMNS, PROPERTIES_COLUMN, InvalidSelectorError, Selector
from spark_jms.core.selector_tree import (
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
    unparse,
)

pytestmark = pytest.mark.unit

Typed = tuple[str, Any]  # a property: its JMS type and its value

HEADER_TYPES = {
    "JMSMessageID": pa.string(),
    "JMSTimestamp": pa.int64(),
    "JMSPriority": pa.int32(),
    "JMSDeliveryMode": pa.int32(),
    "JMSCorrelationID": pa.string(),
    "JMSType": pa.string(),
    "JMSXGroupID": pa.string(),
    "JMSXGroupSeq": pa.int32(),
}


# -- messages as tables ------------------------------------------------------------------------------------------------
def stored_text(kind: str, value: Any) -> str:
    """A property value as a message table stores it."""
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "float":
        return str(np.float32(value))
    return str(value)


def stored_properties(properties: Mapping[str, Typed]) -> list[tuple[str, str]]:
    """The map entries of typed properties, with the reserved entry that names the types."""
    entries = [(name, stored_text(kind, value)) for name, (kind, value) in properties.items()]
    types = ",".join(f"{name}:{kind}" for name, (kind, _) in properties.items() if kind != "string")
    return [*entries, ("JMS_JMSQ_Types", types)] if types else entries


def table_of(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Typed]]]) -> pa.Table:
    """A message table of (headers, typed properties)."""
    columns: dict[str, Any] = {
        name: pa.array([headers.get(name) for headers, _ in rows], kind) for name, kind in HEADER_TYPES.items()
    }
    maps = [stored_properties(properties) or None for _, properties in rows]
    columns["properties"] = pa.array(maps, pa.map_(pa.string(), pa.string()))
    return pa.table(columns)


def python_values(properties: Mapping[str, Typed]) -> dict[str, Any]:
    """The typed properties as Python values."""
    return {n: float(np.float32(v)) if kind == "float" else v for n, (kind, v) in properties.items()}


def selector(text: str) -> Selector:
    found = Selector.parse(text)
    assert found is not None
    return found


def chosen(text: str, *properties: Mapping[str, Typed]) -> list[bool]:
    """What a selector says of messages with these properties; mask and matches must agree."""
    found = selector(text)
    mask: list[bool] = found.mask(table_of([({}, each) for each in properties])).tolist()
    assert mask == [found.matches({}, python_values(each)) for each in properties]
    return mask


# -- the reference evaluator: Kleene's logic as numbers, F 0, U 0.5, T 1 -----------------------------------------------
F, U, T = 0.0, 0.5, 1.0
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def ref_like(pattern: str, escape: str | None, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == escape:
        return text[:1] == pattern[1] and ref_like(pattern[2:], escape, text[1:])
    if pattern[0] == "%":
        return any(ref_like(pattern[1:], escape, text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and ref_like(pattern[1:], escape, text[1:])


def ref_is_number(value: Any) -> bool:
    return type(value) in (int, float)


def ref_compare(op: str, a: Any, b: Any) -> float:
    if a is None or b is None:
        return U
    if ref_is_number(a) and ref_is_number(b):
        return float(COMPARE[op](a, b) if type(a) is type(b) else COMPARE[op](float(a), float(b)))
    return float(type(a) is type(b) and op in ("=", "<>") and COMPARE[op](a, b))


def ref_calculate(op: str, a: Any, b: Any) -> Any:
    if not (ref_is_number(a) and ref_is_number(b)):
        return None
    if type(a) is int and type(b) is int:
        if op == "/" and b == 0:
            return None
        exact = math.trunc(Fraction(a, b)) if op == "/" else {"+": a + b, "-": a - b, "*": a * b}[op]
        return ctypes.c_int64(exact).value
    with np.errstate(all="ignore"):
        x, y = np.float64(a), np.float64(b)
        return float({"+": x + y, "-": x - y, "*": x * y, "/": x / y}[op])


def ref_value(node: Expression, row: Mapping[str, Any]) -> Any:
    if isinstance(node, Literal):
        return node.value
    if isinstance(node, Name):
        return row.get(node.name)
    if isinstance(node, Sign):
        return ref_calculate("*", ref_value(node.operand, row), 1 if node.op == "+" else -1)
    assert isinstance(node, Arithmetic)
    value = ref_value(node.first, row)
    for op, operand in node.rest:
        value = ref_calculate(op, value, ref_value(operand, row))
    return value


def ref(node: Expression, row: Mapping[str, Any]) -> float:
    match node:
        case And(operands):
            return min(ref(each, row) for each in operands)
        case Or(operands):
            return max(ref(each, row) for each in operands)
        case Not(operand):
            return 1 - ref(operand, row)
        case Comparison(op, left, right):
            return ref_compare(op, ref_value(left, row), ref_value(right, row))
        case Between(operand, low, high, negated):
            value, low_value, high_value = (ref_value(each, row) for each in (operand, low, high))
            if negated:
                return max(ref_compare("<", value, low_value), ref_compare(">", value, high_value))
            return min(ref_compare(">=", value, low_value), ref_compare("<=", value, high_value))
        case In(name, values, negated):
            truth = max(ref_compare("=", row.get(name.name), value) for value in values)
            return 1 - truth if negated else truth
        case Like(name, pattern, escape, negated):
            value = row.get(name.name)
            if value is None:
                return U
            return float((isinstance(value, str) and ref_like(pattern, escape, value)) is not negated)
        case IsNull(name, negated):
            return float((row.get(name.name) is None) is not negated)
        case _:
            return ref_compare("=", ref_value(node, row), True)


# -- random selectors and random messages ------------------------------------------------------------------------------
TEXTS = ["", "a", "A", "ab", "a%b", "a_b", "it's", "a\nb", "\n", "é", "日本", "\\", "a\\b", "\U0001f600", "5", "true"]
LONGS = [0, 1, 2, 3, -1, -7, 5, 4, 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 0.5, 5.0, -2.5, 1e308, 5e-324, 9007199254740992.0, float(2**63), float(np.float32(0.1))]
NAMES = ["a", "b", "c", "$price_€", "JMSPriority", "JMSTimestamp", "JMSXGroupSeq"]
TEXT_NAMES = ["a", "b", "c", "JMSType", "JMSDeliveryMode", "JMSXGroupID", "JMSCorrelationID", "JMSMessageID"]

numbers = st.one_of(st.sampled_from(LONGS), st.sampled_from(DOUBLES)).map(Literal)
names_ = st.one_of(st.sampled_from(NAMES), st.sampled_from(TEXT_NAMES)).map(Name)


def _chains(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    signed = inner.filter(lambda node: not isinstance(node, Literal))
    return st.one_of(
        st.builds(Sign, st.sampled_from("+-"), signed),
        *(
            st.builds(
                lambda first, rest: Arithmetic(first, tuple(rest)),
                inner,
                st.lists(st.tuples(st.sampled_from(ops), inner), min_size=1, max_size=3),
            )
            for ops in ("+-", "*/")
        ),
    )


sums = st.recursive(st.one_of(names_, names_, numbers), _chains, max_leaves=4)
equal_sides = st.one_of(sums, sums, st.sampled_from(TEXTS).map(Literal), st.booleans().map(Literal))
modes = st.sampled_from(["PERSISTENT", "NON_PERSISTENT"]).map(Literal)
predicates = st.one_of(
    st.builds(Comparison, st.sampled_from(["=", "<>"]), equal_sides, equal_sides),
    st.builds(Comparison, st.sampled_from(["=", "<>"]), st.just(Name("JMSDeliveryMode")), modes),
    st.builds(Comparison, st.sampled_from(["<", "<=", ">", ">="]), sums, sums),
    st.builds(Between, sums, sums, sums, st.booleans()),
    st.builds(In, names_, st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4).map(tuple), st.booleans()),
    st.builds(
        Like,
        names_,
        st.lists(st.sampled_from(["%", "_", "a", "b", "\\", "!!", "!%", "!_", "\n", "é", ".", "'"]), max_size=6).map(
            "".join
        ),
        st.sampled_from([None, "!"]),
        st.booleans(),
    ),
    st.builds(IsNull, names_, st.booleans()),
    names_,
    st.booleans().map(Literal),
)
conditions = st.recursive(
    predicates,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(And),
        st.lists(inner, min_size=2, max_size=3).map(tuple).map(Or),
    ),
    max_leaves=6,
)
typed_values = st.one_of(
    st.tuples(st.just("string"), st.sampled_from(TEXTS)),
    st.tuples(st.just("boolean"), st.booleans()),
    st.tuples(st.sampled_from(["byte", "short", "int", "long"]), st.sampled_from(LONGS)),
    st.tuples(st.just("double"), st.sampled_from([*DOUBLES, math.nan, math.inf, -math.inf])),
    st.tuples(st.just("float"), st.sampled_from([0.1, 0.5, -0.0, 5.0, math.nan, math.inf])),
)
messages = st.tuples(
    st.fixed_dictionaries(
        {
            "JMSMessageID": st.sampled_from(["ID:1", "a"]),
            "JMSTimestamp": st.sampled_from([0, 5, 2**53 + 1]),
            "JMSPriority": st.integers(0, 9),
            "JMSDeliveryMode": st.sampled_from([1, 2]),
            "JMSCorrelationID": st.none() | st.sampled_from(TEXTS),
            "JMSType": st.none() | st.sampled_from(TEXTS),
            "JMSXGroupID": st.none() | st.sampled_from(TEXTS),
            "JMSXGroupSeq": st.none() | st.integers(-1, 3),
        }
    ),
    st.dictionaries(st.sampled_from(["a", "b", "c", "$price_€"]), typed_values),
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=conditions, rows=st.lists(messages, max_size=12), start=st.integers(0, 3), chunks=st.integers(1, 3))
def test_mask_matches_and_reference_agree(tree: Expression, rows: list[Any], start: int, chunks: int) -> None:
    """C7: the vectorised mask, the one-message evaluation and the reference give the same for random selectors."""
    found = selector(unparse(tree))
    table = pa.concat_tables([table_of(rows)] * chunks).slice(start)
    expected, single = [], []
    for headers, properties in (rows * chunks)[start:]:
        values = python_values(properties)
        mode = "PERSISTENT" if headers["JMSDeliveryMode"] == 2 else "NON_PERSISTENT"
        expected.append(ref(tree, {**values, **headers, "JMSDeliveryMode": mode}) == T)
        single.append(found.matches(headers, values))
    mask = found.mask(table)
    assert mask.dtype == np.bool_
    assert mask.tolist() == expected
    assert single == expected
    if table.num_rows:
        assert found.mask(table.combine_chunks().to_batches()[0]).tolist() == expected


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=conditions)
def test_round_trip(tree: Expression) -> None:
    """C7: parsing the text of a tree gives the tree (compared by repr: 1, 1.0 and TRUE are equal in Python)."""
    assert repr(selector(unparse(tree)).tree) == repr(tree)


PIECES = ["a", "5", "7.", "'x'", "=", "<>", "<", "(", ")", "AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "-"]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.lists(st.sampled_from(PIECES)))
def test_any_text_parses_or_is_refused_by_name(text: str | list[str]) -> None:
    """C7: no text makes the parser raise anything but InvalidSelectorError."""
    text = text if isinstance(text, str) else " ".join(text)
    try:
        found = Selector.parse(text)
    except InvalidSelectorError as error:
        found, message = None, str(error)
        if "Invalid selector at line" not in message:
            raise
    assert found is None or repr(selector(unparse(found.tree)).tree) == repr(found.tree)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=conditions, message=messages)
def test_prunable_comparisons_hold_for_every_selected_message(tree: Expression, message: Any) -> None:
    """C7: what `prunable` names is implied by the selector, by Python's comparison of stored values."""
    headers, properties = message
    values = python_values(properties)
    found = selector(unparse(tree))
    for name, op, literal in found.prunable() if found.matches(headers, values) else ():
        stored = headers[name] if name in HEADER_COLUMNS else values[name]
        assert COMPARE[op](stored, literal)


# -- the specification's examples --------------------------------------------------------------------------------------
CAR = {"color": ("string", "blue"), "weight": ("int", 2600), "JMSType": ("string", "car")}
EXAMPLES = [
    ("age BETWEEN 15 AND 19", {"age": ("int", 15)}, True),
    ("age BETWEEN 15 AND 19", {"age": ("int", 20)}, False),
    ("age NOT BETWEEN 15 AND 19", {"age": ("int", 14)}, True),
    ("age NOT BETWEEN 15 AND 19", {"age": ("string", "14")}, False),
    ("age BETWEEN 15 AND 19", {}, False),
    ("Country IN (' UK', 'US', 'France')", {"Country": ("string", " UK")}, True),
    ("Country IN (' UK', 'US', 'France')", {"Country": ("string", "Peru")}, False),
    ("Country NOT IN (' UK', 'US', 'France')", {"Country": ("string", "Peru")}, True),
    ("Country NOT IN (' UK', 'US', 'France')", {}, False),
    ("Country NOT IN ('UK')", {"Country": ("int", 5)}, True),
    ("phone LIKE '12%3'", {"phone": ("string", "123")}, True),
    ("phone LIKE '12%3'", {"phone": ("string", "12993")}, True),
    ("phone LIKE '12%3'", {"phone": ("string", "1234")}, False),
    ("word LIKE 'l_se'", {"word": ("string", "lose")}, True),
    ("word LIKE 'l_se'", {"word": ("string", "loose")}, False),
    (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": ("string", "_foo")}, True),
    (r"underscored LIKE '\_%' ESCAPE '\'", {"underscored": ("string", "bar")}, False),
    ("phone NOT LIKE '12%3'", {"phone": ("string", "1234")}, True),
    ("phone NOT LIKE '12%3'", {}, False),
    ("t LIKE 'a%b'", {"t": ("string", "a\n\nb")}, True),
    ("t LIKE 'a_b'", {"t": ("string", "a\nb")}, True),
    ("t LIKE 'a'", {"t": ("string", "a\n")}, False),
    (r"t LIKE '%\'", {"t": ("string", "x\\")}, True),
    ("prop_name IS NULL", {}, True),
    ("prop_name IS NOT NULL", {}, False),
    ("prop_name IS NOT NULL", {"prop_name": ("boolean", False)}, True),
    ("color = 'blue' AND weight > 2500", CAR, True),
    ("color = 'red' OR weight > 2500", CAR, True),
    ("NumberOfOrders > 1", {"NumberOfOrders": ("string", "2")}, False),
    ("NumberOfOrders > 1", {"NumberOfOrders": ("int", 2)}, True),
    ("name = 'it''s'", {"name": ("string", "it's")}, True),
    ("Color = 'blue'", CAR, False),
    ("color = 'Blue'", CAR, False),
    ("between_ = 1 aNd NoT (x iS nUlL)", {"between_": ("int", 1), "x": ("int", 1)}, True),
    ("n = 'x'", {"n": ("int", 1)}, False),
    ("NOT n = 'x'", {"n": ("int", 1)}, True),
    ("n <> 'x'", {"n": ("int", 1)}, False),
    ("NOT n = 'x'", {}, False),
    ("a > b", {"a": ("string", "2"), "b": ("string", "1")}, False),
    ("ok", {"ok": ("boolean", True)}, True),
    ("NOT ok", {"ok": ("boolean", False)}, True),
    ("ok = TRUE", {"ok": ("boolean", True)}, True),
    ("ok = TRUE", {"ok": ("string", "true")}, False),
    ("x = 1.0", {"x": ("long", 1)}, True),
    ("x = 0.1", {"x": ("float", 0.1)}, False),
    ("x = 0.1F", {"x": ("float", 0.1)}, True),
    ("x = 9007199254740992.0", {"x": ("long", 2**53 + 1)}, True),
    ("x = 9007199254740992", {"x": ("long", 2**53 + 1)}, False),
    ("2 + 3 * 4 = 14 AND (2 + 3) * 4 = 20 AND -2 - -3 = 1", {}, True),
    ("7 / 2 = 3 AND -7 / 2 = -3 AND 7 / -2 = -3 AND 7 / 2. = 3.5", {}, True),
    ("5 / -1 = -5 AND x / -1 = -7 AND x / y = -7", {"x": ("int", 7), "y": ("byte", -1)}, True),
    ("x / 0 = 1", {"x": ("long", 1)}, False),
    ("NOT x / 0 = 1", {"x": ("long", 1)}, False),
    ("x / 0. > 1e308", {"x": ("long", 1)}, True),
    ("x / 0. < -1e308", {"x": ("double", -1.0)}, True),
    ("x / 0. <> x / 0.", {"x": ("double", 0.0)}, True),
    ("9223372036854775807 + 1 = -9223372036854775808", {}, True),
    ("x / -1 = x AND -x = x", {"x": ("long", -(2**63))}, True),
    ("x + 1 > 0", {"x": ("string", "5")}, False),
    ("NOT x + 1 > 0", {"x": ("string", "5")}, False),
    ("x = NAN", {"x": ("double", math.nan), "NAN": ("double", math.nan)}, False),
    ("TRUE", {}, True),
    ("FALSE OR x = 1", {}, False),
    ("0x1F = 31 AND 037 = 31 AND 0b11 = 3 AND 31L = 31l AND 0xFFFFFFFFFFFFFFFF = -1", {}, True),
    ("7. = 7 AND .5 = 5E-1 AND 57E3 = 57000 AND 7F = 7d AND 0x1p3 = 8 AND -95.7 < +6.2", {}, True),
    ("größe = 1 AND $x = 2 AND _y = 3", {"größe": ("int", 1), "$x": ("byte", 2), "_y": ("short", 3)}, True),
    ("JMS_Vendor = 'v' AND JMSXUserID = 'u'", {"JMS_Vendor": ("string", "v"), "JMSXUserID": ("string", "u")}, True),
]


@pytest.mark.parametrize(("text", "properties", "expected"), EXAMPLES)
def test_examples(text: str, properties: Mapping[str, Typed], expected: bool) -> None:
    """C7: the specification's examples, and what it says about types, NULL and numbers."""
    properties = {name: value for name, value in properties.items() if name not in HEADER_COLUMNS}
    assert chosen(text, properties) == [expected]


def test_kleene_tables() -> None:
    """C7: AND, OR and NOT over true, false and unknown."""
    rows: list[dict[str, Typed]] = [{}, {"p": ("boolean", True)}, {"p": ("boolean", False)}]
    assert chosen("(p AND TRUE) OR (p IS NULL AND FALSE)", *rows) == [False, True, False]
    assert chosen("NOT (p AND FALSE)", *rows) == [True, True, True]
    assert chosen("NOT (p AND TRUE)", *rows) == [False, False, True]
    assert chosen("p OR TRUE", *rows) == [True, True, True]
    assert chosen("NOT (p OR FALSE)", *rows) == [False, False, True]


def test_header_fields() -> None:
    """C7: delivery mode compares as the names JMS has, the other headers as they are stored."""
    headers = {"JMSDeliveryMode": 2, "JMSPriority": 7, "JMSMessageID": "ID:1", "JMSTimestamp": 5, "JMSXGroupSeq": 1}
    for text, expected in [
        ("JMSDeliveryMode = 'PERSISTENT'", True),
        ("JMSDeliveryMode = 'NON_PERSISTENT'", False),
        ("JMSDeliveryMode = 2", False),
        ("JMSDeliveryMode LIKE 'P%' AND JMSDeliveryMode IN ('PERSISTENT')", True),
        ("JMSPriority > 6 AND JMSTimestamp = 5 AND JMSMessageID = 'ID:1' AND JMSXGroupSeq = 1", True),
        ("JMSType IS NULL AND JMSCorrelationID IS NULL AND JMSXGroupID IS NULL", True),
    ]:
        found = selector(text)
        assert found.mask(table_of([(headers, {})])).tolist() == [expected]
        assert found.matches(headers, {}) is expected
        assert set(found.columns) == found.identifiers


# -- errors ------------------------------------------------------------------------------------------------------------
ERRORS = [
    ("a = = 5", 1, 5, "found '=' after '='", "a number"),
    ("a == 5", 1, 4, "equal is written =", ""),
    ("a != 5", 1, 3, "'not equal' is written <>", ""),
    ("a = 'x", 1, 5, "the string is never closed", ""),
    ('a = "x"', 1, 5, "single quotes", ""),
    ("a = NULL", 1, 5, "IS NULL or IS NOT NULL", ""),
    ("IN = 5", 1, 1, "a keyword, not a name", ""),
    ("a IN (1)", 1, 7, "a list of IN holds strings", "expected a string in single quotes"),
    ("a IN ('x'", 1, 10, "the selector ends here", "expected ')' or ','"),
    ("a IN ()", 1, 7, "found ')' after '('", "a string in single quotes"),
    ("a AND", 1, 6, "the selector ends here", "NOT"),
    ("a = 1\n AND b 5", 2, 8, "found '5' after 'b'", "BETWEEN"),
    ("a = 1\r\n AND\r b ~ 5", 3, 4, "found '~'", ""),
    ("a > 'x'", 1, 5, "> compares numbers", "found a string"),
    ("a BETWEEN 'a' AND 'b'", 1, 11, "BETWEEN takes numbers", "found a string"),
    ("'a' + 1 = 2", 1, 1, "+ takes numbers", "found a string"),
    ("NOT 5", 1, 5, "NOT takes a condition", "found a number"),
    ("a = 1 AND 'x'", 1, 11, "AND joins conditions", "found a string"),
    ("5", 1, 1, "a selector must be a condition", "found a number"),
    ("(a > 5) = TRUE", 1, 1, "= compares values", "found a condition"),
    ("'a' LIKE 'b'", 1, 1, "LIKE takes a name on its left", ""),
    ("a LIKE b", 1, 8, "found 'b' after 'LIKE'", "a string in single quotes"),
    ("a LIKE 'x' ESCAPE 'ab'", 1, 19, "one character, found 2", ""),
    ("a LIKE 'x!' ESCAPE '!'", 1, 8, "ends with its escape character", ""),
    ("1 IS NULL", 1, 1, "IS NULL takes a name on its left", ""),
    ("a.b = 1", 1, 2, "a name has no dots", ""),
    ("x² = 1", 1, 2, "'²' cannot be in a name", ""),
    ("½ = 1", 1, 1, "cannot be the first character of a name", ""),
    ("a = 1_000", 1, 6, "no underscores", ""),
    ("a = 08", 1, 5, "8 and 9 are not octal digits", ""),
    ("a = 9223372036854775808", 1, 5, "the number is too large", ""),
    ("a = -(9223372036854775808)", 1, 7, "the number is too large", ""),
    ("a = 0x10000000000000000", 1, 5, "the number is too large", ""),
    ("a = 1e999", 1, 5, "out of the range of Java's double", ""),
    ("a = 1e-999", 1, 5, "out of the range of Java's double", ""),
    ("a = 1e39F", 1, 5, "out of the range of Java's float", ""),
    ("a = '\ud800'", 1, 6, "half a surrogate pair", ""),
    ("a = 1 ;", 1, 7, "found ';'", ""),
    ("(" * 101 + "a" + ")" * 101, 1, 1, "nested more than 100 deep", ""),
    ("NOT " * 101 + "a", 1, 1, "nested more than 100 deep", ""),
]


@pytest.mark.parametrize(("text", "line", "column", "what", "expected"), ERRORS)
def test_error_messages(text: str, line: int, column: int, what: str, expected: str) -> None:
    """C7: an error says what is wrong, where, shows it with a caret, and says what was expected, in words."""
    with pytest.raises(InvalidSelectorError) as caught:
        Selector.parse(text)
    head, shown, caret = str(caught.value).split("\n")
    assert f"at line {line}, column {column}:" in head
    assert what in head
    assert expected in head
    assert not {"LPAR", "RPAR", "COMPARE", "$END", "Token", "INTEGER"} & set(head.replace(",", " ").split())
    if column <= 60 and text.isprintable():
        assert caret.index("^") == column + 1
        assert column > len(text) or shown[column + 1] == text[column - 1]
    assert pickle.loads(pickle.dumps(caught.value)).args == caught.value.args


@pytest.mark.parametrize(
    "name",
    [
        "JMSDestination",
        "JMSReplyTo",
        "JMSExpiration",
        "JMSRedelivered",
        "JMSDeliveryTime",
        "JMSFoo",
        "JMSXDeliveryCount",
        "JMS_JMSQ_Types",
    ],
)
def test_names_that_cannot_be_selected(name: str) -> None:
    """C7: other headers, the delivery count and the reserved property are refused by name."""
    with pytest.raises(InvalidSelectorError, match=f"{name} cannot be used in a selector"):
        Selector.parse(f"a = 1 AND {name} = 1")


def test_blank_is_no_selector() -> None:
    """C7: no text, empty text and blank text select everything, as JMS has it."""
    assert [Selector.parse(text) for text in (None, "", " \t\r\n ")] == [None, None, None]
    with pytest.raises(InvalidSelectorError, match="found int"):
        Selector.parse(5)  # type: ignore[arg-type]


def test_limits() -> None:
    """C7: 8 KiB and 100 levels are allowed and evaluated, one more is refused."""
    deepest = "(NOT a OR " * 50 + "a" + ")" * 50
    for text in ("(" * 100 + "a" + ")" * 100, deepest, "a = " + "(1 + 1 * " * 100 + "1" + ")" * 100):
        assert len(chosen(text, {"a": ("boolean", True)})) == 1
    terms = " AND ".join(["a"] * 1365)
    assert chosen(terms, {"a": ("boolean", True)}, {}) == [True, False]
    exact = "a = '" + "x" * (8 * 1024 - 6) + "'"
    assert Selector.parse(exact) is not None
    with pytest.raises(InvalidSelectorError, match="8193 bytes long, at most 8192"):
        Selector.parse(exact + " ")


# -- the value ---------------------------------------------------------------------------------------------------------
def test_identifiers_and_columns() -> None:
    """C7: a selector names what it reads, so that a planner reads those columns and no more."""
    found = selector("JMSType = 'x' AND color LIKE 'r%' OR JMSPriority > 3 + JMSXGroupSeq AND color IS NULL")
    assert found.identifiers == {"JMSType", "color", "JMSPriority", "JMSXGroupSeq"}
    assert found.columns == ("JMSPriority", "JMSType", "JMSXGroupSeq", "properties")
    assert selector("JMSPriority = 1").columns == ("JMSPriority",)
    assert selector("TRUE").columns == ()
    assert selector("JMS_x = 1").columns == ("properties",)


def test_prunable() -> None:
    """C7: comparisons of a name and a literal, ANDed at top level, with values as stored."""
    text = (
        "JMSPriority > 3 AND (5 > x AND y BETWEEN 1 AND z) AND JMSType IN ('a') AND ok AND b = FALSE "
        "AND JMSDeliveryMode = 'PERSISTENT' AND (p = 1 OR q = 2) AND NOT r = 3 AND s LIKE 's%' AND t + 1 = 2"
    )
    assert selector(text).prunable() == (
        ("JMSPriority", ">", 3),
        ("x", "<", 5),
        ("y", ">=", 1),
        ("JMSType", "=", "a"),
        ("ok", "=", True),
        ("b", "=", False),
        ("JMSDeliveryMode", "=", 2),
    )
    for text in ("JMSPriority = 'high'", "JMSType = 5", "JMSDeliveryMode = 2", "x = 9007199254740993", "a OR b"):
        assert selector(text).prunable() == ()
    assert selector("JMSTimestamp = 9007199254740993").prunable() == (("JMSTimestamp", "=", 9007199254740993),)


def test_selector_is_a_value() -> None:
    """C7: equal by text, hashable, picklable."""
    found = selector("a = 1")
    assert found == Selector.parse("a = 1")
    assert {found: 1}[pickle.loads(pickle.dumps(found))] == 1
    assert str(found) == found.text == "a = 1"


def test_lark_is_loaded_with_the_first_selector() -> None:
    """C7: importing the module must stay cheap."""
    code = (
        "import sys; from spark_jms.core.selector import Selector; assert 'lark' not in sys.modules; "
        "Selector.parse('a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- stored forms ------------------------------------------------------------------------------------------------------
def properties_table(maps: list[Any]) -> pa.Table:
    return pa.table({"properties": pa.array(maps, pa.map_(pa.string(), pa.string()))})


def test_text_that_is_not_of_its_type_is_null() -> None:
    """C7: a stored value that does not read as its declared type is NULL, and does not disturb its neighbours."""
    bad = {
        "long": ["", "x", "1.5", "0x1F", " 1", "9223372036854775808", "99999999999999999999", "1_0"],
        "double": ["", "x", "1f", "0x1p3", "1_0", " 1"],
        "boolean": ["TRUE", "1", ""],
        "decimal": ["5"],
    }
    cases = [(kind, text) for kind, texts in bad.items() for text in texts]
    good = [("long", "-9223372036854775808"), ("double", "Infinity"), ("double", "-1.0E-5"), ("float", "nan")]
    rows = [[("a", text), ("JMS_JMSQ_Types", f"a:{kind}")] for kind, text in [*cases, *good]]
    assert selector("a IS NULL").mask(properties_table(rows)).tolist() == [True] * len(cases) + [False] * len(good)


def test_stored_maps() -> None:
    """C7: null maps, null values, empty maps, types of absent names, spaces in the types entry."""
    rows = [
        None,
        [],
        [("a", None)],
        [("a", "5")],
        [("a", "5"), ("JMS_JMSQ_Types", "b:long, a:long")],
        [("JMS_JMSQ_Types", "a:long"), ("a", "5")],
    ]
    for table in (properties_table(rows), properties_table([[("a", "9")], *rows]).slice(1)):
        assert selector("a = 5").mask(table).tolist() == [False, False, False, False, True, True]
        assert selector("a = '5'").mask(table).tolist() == [False, False, False, True, False, False]
        assert selector("a IS NULL").mask(table).tolist() == [True, True, True, False, False, False]


def test_null_map_over_entries() -> None:
    """C7: Arrow allows a null map whose offsets still span entries; they do not count."""
    full = pa.array([[("a", "x")], [("a", "x")]], pa.map_(pa.string(), pa.string()))
    entries = full.buffers()
    hidden = pa.Array.from_buffers(full.type, 2, [pa.py_buffer(b"\x01"), entries[1]], children=[full.values])
    assert selector("a = 'x'").mask(pa.table({"properties": hidden})).tolist() == [True, False]


def test_encodings() -> None:
    """C7: dictionary-encoded, large, view, narrow and all-null header columns."""
    texts = pa.array(["x", None, "y"])
    for column in (texts, texts.dictionary_encode(), texts.cast(pa.large_string()), texts.cast(pa.string_view())):
        assert selector("JMSType = 'x' OR JMSType LIKE 'y%'").mask(pa.table({"JMSType": column})).tolist() == [
            True,
            False,
            True,
        ]
        assert selector("JMSType IN ('y')").mask(pa.table({"JMSType": column})).tolist() == [False, False, True]
    assert selector("JMSType IS NULL").mask(pa.table({"JMSType": pa.nulls(2)})).all()
    assert selector("JMSPriority > 4").mask(pa.table({"JMSPriority": pa.array([9, 4], pa.int8())})).tolist() == [
        True,
        False,
    ]
    with pytest.raises(ValueError, match="JMSPriority is double"):
        selector("JMSPriority > 4").mask(pa.table({"JMSPriority": [1.0]}))


def test_missing_column_is_named() -> None:
    """C7: a table without a column that the selector needs is refused; one with no rows is fine."""
    with pytest.raises(ValueError, match="needs column properties; the table has JMSType"):
        selector("JMSType = 'x' AND a = 1").mask(pa.table({"JMSType": ["x"]}))
    assert selector("TRUE").mask(pa.table({"JMSType": ["x", "y"]})).tolist() == [True, True]
    assert selector("a = 1").mask(properties_table([])).tolist() == []


def test_numbers_of_other_libraries() -> None:
    """C7: matches takes numpy's numbers; an integer that no Java type holds is NULL, another type is unlike."""
    found = selector("a = 5")
    assert all(found.matches({}, {"a": value}) for value in (np.int32(5), np.float32(5), np.float64(5), 5.0))
    assert selector("a IS NULL").matches({}, {"a": 2**63})
    assert not selector("a = 5 OR a IS NULL").matches({}, {"a": b"5"})


def test_long_like_pattern() -> None:
    """C7: a pattern too large for Arrow's regular expressions, and one that makes naive matching explode."""
    wide = "_" * 8000
    assert chosen(f"a LIKE '{wide}%'", {"a": ("string", "é" * 8000)}, {"a": ("string", "x")}, {}) == [
        True,
        False,
        False,
    ]
    assert chosen(f"a LIKE '{'%a' * 60}b'", {"a": ("string", "a" * 300)}) == [False]


def test_many_small_chunks() -> None:
    """C7: the mask of a table of many chunks is that of the whole."""
    one = properties_table([[("a", "1"), ("JMS_JMSQ_Types", "a:int")], [("a", "1")]])
    assert selector("a = 1").mask(pa.concat_tables([one] * 50)).tolist() == [True, False] * 50


def test_delivery_mode_is_read_as_text() -> None:
    """C7: a mode that JMS does not have is NULL."""
    table = pa.table({"JMSDeliveryMode": pa.array([1, 2, 3, None], pa.int32())})
    assert selector("JMSDeliveryMode IS NULL").mask(table).tolist() == [False, False, True, True]
    assert PROPERTIES_COLUMN == "properties"
