"""The syntax tree of a message selector, and its text.

Nodes are frozen values made by grammar.py and read by matching.py (one message) and evaluation.py (a table). `unparse`
writes the text of a tree, so that parsing that text gives an equal tree. Chains of AND, OR and arithmetic are flat tuples,
not left-leaning trees: a selector of a thousand ANDed terms must not be a thousand frames deep.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


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
