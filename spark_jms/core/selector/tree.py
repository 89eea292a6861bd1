"""The syntax tree of a message selector, its text, and its value on one message.

Nodes are frozen values made by grammar.py; `evaluate` reads them for one message, selector.py for a table. `unparse`
writes the text of a tree, so that parsing that text gives an equal tree. Chains of AND, OR and arithmetic are flat tuples,
not left-leaning trees: a selector of a thousand ANDed terms must not be a thousand frames deep.

The result of a condition is True, False or None (unknown). An operand is NULL, a string, a boolean, an exact number (Java long)
or an approximate one (Java double). A comparison with NULL is unknown, one of unlike types is false; so are IN and LIKE, and NOT
IN and NOT LIKE, of a value that is not a string. A condition in parentheses is a boolean, or NULL where it is unknown. Arithmetic
on anything but numbers is NULL.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real
from typing import Any

from spark_jms.core.messages.properties import LONG_MAX, LONG_MIN


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, an exact number (int), an approximate number (float), TRUE or FALSE."""

    value: str | int | float | bool


@dataclass(frozen=True, slots=True)
class Name:
    """A header or a property, read from the message; NULL where the message has none."""

    name: str


@dataclass(frozen=True, slots=True)
class Sign:
    """Unary + or - of something that is not a number literal (a signed literal is a literal)."""

    op: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """first op operand op operand ..., from left to right; all operators of one node have the same precedence."""

    first: Expression
    rest: tuple[tuple[str, Expression], ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """left op right, op one of = <> < <= > >=."""

    op: str
    left: Expression
    right: Expression


@dataclass(frozen=True, slots=True)
class Between:
    """operand [NOT] BETWEEN low AND high."""

    operand: Expression
    low: Expression
    high: Expression
    negated: bool


@dataclass(frozen=True, slots=True)
class In:
    """name [NOT] IN ('a', 'b')."""

    name: Name
    values: tuple[str, ...]
    negated: bool


@dataclass(frozen=True, slots=True)
class Like:
    """name [NOT] LIKE 'pattern' [ESCAPE 'c']."""

    name: Name
    pattern: str
    escape: str | None
    negated: bool


@dataclass(frozen=True, slots=True)
class IsNull:
    """name IS [NOT] NULL."""

    name: Name
    negated: bool


@dataclass(frozen=True, slots=True)
class Not:
    """NOT operand."""

    operand: Expression


@dataclass(frozen=True, slots=True)
class And:
    """Two or more operands, ANDed."""

    operands: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Two or more operands, ORed."""

    operands: tuple[Expression, ...]


Expression = Literal | Name | Sign | Arithmetic | Comparison | Between | In | Like | IsNull | Not | And | Or
Lookup = Callable[[str], object]

_COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def children(node: Expression) -> tuple[Expression, ...]:
    """The operands of a node, left to right."""
    match node:
        case Literal() | Name():
            return ()
        case Sign(_, operand) | Not(operand):
            return (operand,)
        case Arithmetic(first, rest):
            return (first, *(operand for _, operand in rest))
        case Comparison(_, left, right):
            return (left, right)
        case Between(operand, low, high, _):
            return (operand, low, high)
        case In(name, _, _) | Like(name, _, _, _) | IsNull(name, _):
            return (name,)
        case And(operands) | Or(operands):
            return operands


def names(node: Expression) -> Iterator[str]:
    """Every name the tree reads, with repetitions."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Name):
            yield node.name
        waiting.extend(children(node))


def wrap_long(value: int) -> int:
    """Java's long: overflow wraps around in two's complement."""
    return (value - LONG_MIN) % 2**64 + LONG_MIN


def like_parts(pattern: str, escape: str | None) -> tuple[tuple[str, bool], ...] | None:
    """The characters of a LIKE pattern, each with whether it is a wildcard; None where the escape ends the pattern.

    The escape character makes the next character stand for itself, whatever it is.
    """
    parts: list[tuple[str, bool]] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, None)
            if following is None:
                return None
            parts.append((following, False))
        else:
            parts.append((character, character in "%_"))
    return tuple(parts)


# -- tree to text ------------------------------------------------------------------------------------------------------
_OR, _AND, _NOT, _PREDICATE, _SUM, _PRODUCT, _SIGN, _ATOM = range(8)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literal(value: str | int | float | bool) -> tuple[int, str]:
    if isinstance(value, str):
        return _ATOM, _quoted(value)
    if isinstance(value, bool):
        return _ATOM, "TRUE" if value else "FALSE"
    text = repr(value)
    return (_SIGN if text.startswith("-") else _ATOM), text


def _text(node: Expression) -> tuple[int, str]:
    """The text of a node and how tightly it binds."""
    match node:
        case Literal(value):
            return _literal(value)
        case Name(name):
            return _ATOM, name
        case Sign(op, operand):
            return _SIGN, f"{op} {_inside(operand, _SIGN)}"
        case Arithmetic(first, rest):
            level = _SUM if rest[0][0] in "+-" else _PRODUCT
            tail = "".join(f" {op} {_inside(operand, level + 1)}" for op, operand in rest)
            return level, _inside(first, level + 1) + tail
        case Comparison(op, left, right):
            return _PREDICATE, f"{_inside(left, _SUM)} {op} {_inside(right, _SUM)}"
        case Between(operand, low, high, negated):
            word = "NOT BETWEEN" if negated else "BETWEEN"
            return _PREDICATE, f"{_inside(operand, _SUM)} {word} {_inside(low, _SUM)} AND {_inside(high, _SUM)}"
        case In(name, values, negated):
            return _PREDICATE, f"{name.name} {'NOT IN' if negated else 'IN'} ({', '.join(map(_quoted, values))})"
        case Like(name, pattern, escape, negated):
            tail = "" if escape is None else f" ESCAPE {_quoted(escape)}"
            return _PREDICATE, f"{name.name} {'NOT LIKE' if negated else 'LIKE'} {_quoted(pattern)}{tail}"
        case IsNull(name, negated):
            return _PREDICATE, f"{name.name} {'IS NOT NULL' if negated else 'IS NULL'}"
        case Not(operand):
            return _NOT, f"NOT {_inside(operand, _NOT)}"
        case And(operands):
            return _AND, " AND ".join(_inside(operand, _NOT) for operand in operands)
        case Or(operands):
            return _OR, " OR ".join(_inside(operand, _AND) for operand in operands)


def _inside(node: Expression, level: int) -> str:
    own, text = _text(node)
    return text if own >= level else f"({text})"


def unparse(node: Expression) -> str:
    """The text of a tree: parsing it gives an equal tree."""
    return _inside(node, _OR)


# -- on one message, with typed Python values --------------------------------------------------------------------------
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
