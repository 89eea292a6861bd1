"""Random selectors on random messages: `mask`, `matches` and a reference agree, and pruning is safe (C7)."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_jms.claims.messages.scan import never_matches
from spark_jms.core.selector import HEADER_COLUMNS, InvalidSelectorError, Selector
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
    unparse,
)
from spark_jms.log.messages.data_files import FileStatistics
from spark_jms.log.tables.files import DataFile
from tests.harness.messages.selector_messages import (
    python_values,
    selector,
    table_of,
)

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
    if not isinstance(node, Arithmetic):
        return {T: True, F: False, U: None}[ref(node, row)]
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
            each = [ref_compare("<>" if negated else "=", row.get(name.name), value) for value in values]
            return min(each) if negated else max(each)
        case Like(name, pattern, escape, negated):
            value = row.get(name.name)
            if value is None:
                return U
            return float(isinstance(value, str) and ref_like(pattern, escape, value) is not negated)
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


def static_type(node: Expression) -> type | None:
    """The type that the text shows; None for a name."""
    match node:
        case Name():
            return None
        case Literal(value):
            return float if ref_is_number(value) else type(value)
        case Sign() | Arithmetic():
            return float
        case _:
            return bool


equalities = st.sampled_from(["=", "<>"])


def alike(op: str, left: Expression, right: Expression) -> Comparison:
    """The comparison, with a name in place of an operand whose type the text shows to be another one."""
    types = {static_type(left), static_type(right)} - {None}
    return Comparison(op, left, right if len(types) < 2 else Name("a"))


predicates = st.one_of(
    st.builds(alike, equalities, equal_sides, equal_sides),
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
        st.builds(alike, equalities, inner, st.one_of(inner, equal_sides)),
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
    """C7: the vectorised mask, the evaluation of one message and the reference agree on random selectors."""
    found = selector(unparse(tree))
    table = pa.concat_tables([table_of(rows)] * chunks).slice(start)
    expected, single = [], []
    for headers, properties in (rows * chunks)[start:]:
        values = python_values(properties)
        mode = "PERSISTENT" if headers["JMSDeliveryMode"] == 2 else "NON_PERSISTENT"
        expected.append(ref(tree, {**values, **headers, "JMSDeliveryMode": mode}) == T)
        single.append(found.matches(headers, values))
    mask = found.mask(table)
    assert mask.type == pa.bool_()
    assert mask.tolist() == expected
    assert single == expected
    if table.num_rows:
        assert found.mask(table.combine_chunks().to_batches()[0]).tolist() == expected


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=conditions)
def test_tree_round_trips_as_text(tree: Expression) -> None:
    """C7: parsing the text of a tree returns the tree (compared by repr: 1, 1.0 and TRUE are equal in Python)."""
    assert repr(selector(unparse(tree)).tree) == repr(tree)


PIECES = ["a", "5", "7.", "'x'", "=", "<>", "<", "(", ")", "AND", "OR", "NOT", "IN", "LIKE", "IS", "NULL", "-"]


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=30) | st.lists(st.sampled_from(PIECES)))
def test_any_text_parses_or_raises_selector_error(text: str | list[str]) -> None:
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
    """C7: the selector implies every comparison that `prunable` names, by Python's comparison of stored values."""
    headers, properties = message
    values = python_values(properties)
    found = selector(unparse(tree))
    for name, op, literal in found.prunable() if found.matches(headers, values) else ():
        stored = headers[name] if name in HEADER_COLUMNS else values[name]
        assert COMPARE[op](stored, literal)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(tree=conditions, rows=st.lists(messages, min_size=1, max_size=4))
def test_pruned_file_has_no_match(tree: Expression, rows: list[Any]) -> None:
    """C7: when the statistics that a sender writes exclude a match, no message of the file matches."""
    found, table = selector(unparse(tree)), table_of(rows)
    statistics = FileStatistics()
    for batch in table.to_batches():
        statistics.add(batch)
    file = DataFile("m0-aaaaaaaaaaaa.parquet", 0, 1, len(rows), 1, 0, 0, statistics.to_json(), 1)
    assert not (never_matches(file, found) and pc.any(found.mask(table)).as_py())
