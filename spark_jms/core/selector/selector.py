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

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from spark_jms.core.selector import evaluation
from spark_jms.core.selector.columns import HEADER_COLUMNS, PROPERTIES_COLUMN
from spark_jms.core.selector.matching import DELIVERY_MODES, evaluate
from spark_jms.core.selector.tree import And, Between, Comparison, Expression, In, Literal, Name, names
from spark_jms.errors import InvalidSelectorError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["HEADER_COLUMNS", "PROPERTIES_COLUMN", "InvalidSelectorError", "Selector"]

_INTEGER_HEADERS = frozenset(("JMSPriority", "JMSTimestamp", "JMSXGroupSeq"))
_EXACT_DOUBLE = 2**53
_FLIPPED = {"=": "=", "<>": "<>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


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
        return evaluation.mask(self.tree, self.columns_with(promoted), table, promoted)

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
