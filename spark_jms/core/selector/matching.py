"""A selector on one message, with typed Python values.

The result of a condition is True, False or None (unknown). The theory, shared with `selector_eval`:
an operand is NULL, a string, a boolean, an exact number (Java long) or an approximate one (Java double).
A comparison with NULL is unknown, one of unlike types is false; so are IN and LIKE, and NOT IN and NOT LIKE, of a value
that is not a string. A condition in parentheses is a boolean, or NULL where it is unknown. Arithmetic on anything but numbers is NULL.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from spark_jms.core.selector.tree import (
    LONG_MAX,
    LONG_MIN,
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
    wrap_long,
)

Lookup = Callable[[str], object]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
DELIVERY_MODES: Mapping[object, str] = {1: "NON_PERSISTENT", 2: "PERSISTENT"}


def evaluate(node: Expression, lookup: Lookup) -> bool | None:
    """True, False or None (unknown) for the message whose names `lookup` reads."""
    match node:
        case And(operands):
            return _joined(operands, lookup, False)
        case Or(operands):
            return _joined(operands, lookup, True)
        case Not(operand):
            return _negate(evaluate(operand, lookup), True)
        case Comparison(op, left, right):
            return _compare(op, _value(left, lookup), _value(right, lookup))
        case Between():
            return _between(node, lookup)
        case In(name, values, negated):
            return _text_test(_value(name, lookup), values.__contains__, negated)
        case Like(name, pattern, escape, negated):
            return _text_test(_value(name, lookup), python_like(pattern, escape).fullmatch, negated)
        case IsNull(name, negated):
            return (_value(name, lookup) is None) is not negated
        case _:  # a name or TRUE / FALSE standing as a condition: x means x = TRUE
            return _compare("=", _value(node, lookup), True)


def _joined(operands: tuple[Expression, ...], lookup: Lookup, decisive: bool) -> bool | None:
    """AND (decisive False) or OR (decisive True): one decisive operand decides, else unknown wins."""
    result: bool | None = not decisive
    for operand in operands:
        truth = evaluate(operand, lookup)
        if truth is decisive:
            return decisive
        if truth is None:
            result = None
    return result


def _negate(truth: bool | None, negated: bool) -> bool | None:
    return truth if truth is None or not negated else not truth


def _text_test(value: object, test: Callable[[str], object], negated: bool) -> bool | None:
    """NULL is unknown; a value that is not a string fails the test and its negation."""
    if not isinstance(value, str):
        return None if value is None else False
    return bool(test(value)) is not negated


def _between(node: Between, lookup: Lookup) -> bool | None:
    """The two comparisons that the specification calls equivalent."""
    value, low, high = (_value(part, lookup) for part in (node.operand, node.low, node.high))
    if node.negated:
        sides = _compare("<", value, low), _compare(">", value, high)
        return True if True in sides else None if None in sides else False
    sides = _compare(">=", value, low), _compare("<=", value, high)
    return False if False in sides else None if None in sides else True


def _compare(op: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    if _is_number(left) and _is_number(right):
        if isinstance(left, float) or isinstance(right, float):  # Java widens; Python would compare exactly
            left, right = float(left), float(right)  # type: ignore[arg-type]
        return _COMPARE[op](left, right)
    alike = (isinstance(left, str) and isinstance(right, str)) or (isinstance(left, bool) and isinstance(right, bool))
    return alike and op in ("=", "<>") and _COMPARE[op](left, right)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(node: Expression, lookup: Lookup) -> object:
    """The value of an operand: None, str, bool, int (a Java long), float, or an object of no JMS type."""
    match node:
        case Literal(value):
            return value
        case Name(name):
            return _java(lookup(name))
        case Sign(op, operand):
            number = _value(operand, lookup)
            if not _is_number(number):
                return None
            assert isinstance(number, int | float)
            return number if op == "+" else -number if isinstance(number, float) else wrap_long(-number)
        case Arithmetic(first, rest):
            result = _value(first, lookup)
            for op, operand in rest:
                result = _calculate(op, result, _value(operand, lookup))
            return result
        case _:  # a condition in parentheses: a boolean, NULL where it is unknown
            return evaluate(node, lookup)


def _java(value: object) -> object:
    """A property value as the five kinds know it; an integer that no Java type holds is NULL."""
    if value is None or isinstance(value, str | bool | float):
        return float(value) if type(value) is not float and isinstance(value, float) else value
    if isinstance(value, Integral):
        return int(value) if LONG_MIN <= int(value) <= LONG_MAX else None
    return float(value) if isinstance(value, Real) else value


def _calculate(op: str, left: object, right: object) -> int | float | None:
    if not _is_number(left) or not _is_number(right):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return _calculate_long(op, left, right)
    a, b = float(left), float(right)  # type: ignore[arg-type]
    if op == "+":
        return a + b
    if op == "-":
        return a - b
    if op == "*":
        return a * b
    if b != 0.0:
        return a / b
    return math.nan if a == 0.0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)


def _calculate_long(op: str, left: int, right: int) -> int | None:
    if op == "+":
        return wrap_long(left + right)
    if op == "-":
        return wrap_long(left - right)
    if op == "*":
        return wrap_long(left * right)
    if right == 0:
        return None
    quotient = abs(left) // abs(right)  # Java truncates towards zero
    return wrap_long(quotient if (left < 0) == (right < 0) else -quotient)


@lru_cache(maxsize=256)
def python_like(pattern: str, escape: str | None) -> re.Pattern[str]:
    """LIKE as a regular expression in linear steps: a stretch between two % never moves once it is found."""
    stretches = [""]
    for character, wildcard in like_parts(pattern, escape) or ():
        if wildcard and character == "%":
            stretches.append("")
        else:
            stretches[-1] += "." if wildcard else re.escape(character)
    first, *middle = stretches
    if not middle:
        return re.compile(first, re.DOTALL)
    last = middle.pop()
    found = (f"(?=(?P<s{i}>.*?{part}))(?P=s{i})" for i, part in enumerate(middle) if part)  # atomic, also for 3.10
    return re.compile(f"{first}{''.join(found)}.*{last}", re.DOTALL)
