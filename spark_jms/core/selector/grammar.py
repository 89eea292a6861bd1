"""The JMS message selector grammar: text to tree.

lark does the lexing and LALR parsing; this module adds what a context-free grammar cannot express: Java's number and
identifier rules, which operands an operator takes, which headers may be named, the limits on length and nesting, and
error messages in words. It is imported only when a selector is parsed for the first time.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

import math
import re
import struct
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError

from spark_jms.core.messages.columns import SELECTOR_KEYWORDS as KEYWORDS
from spark_jms.core.messages.properties import LONG_MAX
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
    wrap_long,
)
from spark_jms.errors import InvalidSelectorError

MAX_LENGTH_BYTES = 128 * 1024
MAX_NESTING = 256  # evaluation takes at most two frames a level, of Python's thousand
HEADERS = ("JMSDeliveryMode", "JMSPriority", "JMSMessageID", "JMSTimestamp", "JMSCorrelationID", "JMSType")
REFUSED = frozenset(("JMSXDeliveryCount", "JMS_JMSQ_Types"))

GRAMMAR = r"""
start: disjunction
?disjunction: conjunction (OR conjunction)*
?conjunction: negation (AND negation)*
?negation: NOT negation -> negate
    | predicate
?predicate: sum
    | sum COMPARE sum -> comparison
    | sum [NOT] BETWEEN sum AND sum -> between
    | sum [NOT] IN LPAR STRING (COMMA STRING)* RPAR -> membership
    | sum [NOT] LIKE STRING [ESCAPE STRING] -> like
    | sum IS [NOT] NULL -> null_test
?sum: product ((PLUS | MINUS) product)*
?product: unary ((STAR | SLASH) unary)*
?unary: (PLUS | MINUS) unary -> sign
    | atom
?atom: STRING -> string
    | INTEGER -> integer
    | (DECIMAL | HEX_DECIMAL) -> decimal
    | (TRUE | FALSE) -> boolean
    | NAME -> name
    | LPAR disjunction RPAR -> parenthesis

COMPARE: "<>" | "<=" | ">=" | "=" | "<" | ">"
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
LPAR: "("
RPAR: ")"
COMMA: ","
STRING: /'(?:[^']|'')*'/
HEX_DECIMAL.4: /0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?/
DECIMAL.3: /(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?|[0-9]+(?:[eE][+-]?[0-9]+[fFdD]?|[fFdD])/
INTEGER.2: /(?:0[xX][0-9a-fA-F]+|0[bB][01]+|[0-9]+)[lL]?/
NAME: /[A-Za-z_$\u0080-\U0010ffff][A-Za-z0-9_$\x00-\x08\x0e-\x1b\u007f-\U0010ffff]*/
SPACE: /[ \t\f\r\n]+/
%ignore SPACE
%declare NULL TRUE FALSE NOT AND OR BETWEEN LIKE IN IS ESCAPE
"""

_WORDS = {
    "NAME": "a name",
    "STRING": "a string in single quotes",
    "INTEGER": "a number",
    "DECIMAL": "a number",
    "HEX_DECIMAL": "a number",
    "COMPARE": "a comparison (= <> < <= > >=)",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "LPAR": "'('",
    "RPAR": "')'",
    "COMMA": "','",
    "$END": "the end of the selector",
}
_ORDER = (*_WORDS, *sorted(KEYWORDS))
XML_SELECTOR = "JMS_BEA_SELECT"  # a function of WebLogic: XPath on the body
_HINTS = {
    '"': "strings are written in single quotes",
    "'": "the string is never closed: a quote inside a string is doubled, as in 'it''s'",
    "!": "'not equal' is written <>, negation NOT",
    "&": "write AND",
    "|": "write OR",
    ".": "a name has no dots",
    "?": "a selector has no parameters",
    "{": "a selector has no parameters",
    ":": "a selector has no parameters",
}


class _Flaw(Exception):
    """What is wrong, where in the text; becomes an InvalidSelectorError."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(what)
        self.offset, self.what = offset, what


@dataclass(frozen=True, slots=True)
class _Part:
    """A parsed piece: its node, its static kind, where it starts, how deep it is nested.

    kind: name, string, boolean, number (literal or arithmetic), minus_only (the number 2**63), value (a name in
    parentheses), condition.
    """

    node: Expression
    kind: str
    offset: int
    depth: int = 0


_A = {
    "name": "a name",
    "value": "a name in parentheses",
    "string": "a string",
    "boolean": "TRUE or FALSE",
    "number": "a number",
    "condition": "a condition",
}


def _taken(part: _Part, kinds: str, where: str) -> Expression:
    """The node of an operand whose static kind is one of `kinds`; a flaw otherwise."""
    if part.kind == "minus_only":
        raise _Flaw(part.offset, "the number is too large: exact numbers are Java longs")
    if part.kind not in kinds.split():
        raise _Flaw(part.offset, f"{where}, found {_A[part.kind]}")
    return part.node


_CONDITION = "name value boolean condition"
_NUMBER = "name value number"
_OPERAND = "name value number string boolean condition"
_TYPES = {"number": "number", "string": "string", "boolean": "boolean", "condition": "boolean"}  # known from the text


def _wrong_in_name(text: str) -> int | None:
    """None, or the index of the first character that Java does not take in an identifier."""
    for index, character in enumerate(text):
        category = unicodedata.category(character)
        if category[0] == "L" or category in ("Nl", "Sc", "Pc"):
            continue
        if index and category in ("Nd", "Mn", "Mc", "Cf", "Cc"):  # of Cc, the terminal takes those that Java takes
            continue
        return index
    return None


def _checked_name(token: Token) -> str:
    """The name of a header or property that a selector may read."""
    offset, name = _offset(token), str(token)
    wrong = _wrong_in_name(name)
    if wrong is not None:
        raise _Flaw(offset + wrong, f"{name[wrong]!r} cannot be {'in' if wrong else 'the first character of'} a name")
    if name in REFUSED:
        raise _Flaw(offset, f"{name} cannot be used in a selector: it is not a property of the message as sent")
    if name.startswith("JMS") and not name.startswith(("JMSX", "JMS_")) and name not in HEADERS:
        raise _Flaw(offset, f"{name} cannot be used in a selector: of the headers, only {', '.join(HEADERS)} can")
    return name


def _offset(token: Token) -> int:
    return token.start_pos or 0


def _string(token: Token) -> str:
    return token[1:-1].replace("''", "'")


class _Builder(Transformer[Token, _Part]):
    """Makes nodes while lark parses; checks operands and nesting."""

    def _part(self, node: Expression, kind: str, offset: int, *inner: _Part, deeper: int = 0) -> _Part:
        depth = max((part.depth for part in inner), default=0) + deeper
        if depth > MAX_NESTING:
            raise _Flaw(offset, f"nested more than {MAX_NESTING} deep")
        return _Part(node, kind, offset, depth)

    def start(self, found: list[Any]) -> _Part:
        part: _Part = found[0]
        _taken(part, _CONDITION, "a selector must be a condition")
        return part

    def _logical(self, found: list[Any], make: type[And] | type[Or]) -> _Part:
        parts = [item for item in found if isinstance(item, _Part)]
        word = make.__name__.upper()
        nodes = tuple(_taken(part, _CONDITION, f"{word} joins conditions") for part in parts)
        return self._part(make(nodes), "condition", parts[0].offset, *parts)

    def disjunction(self, found: list[Any]) -> _Part:
        return self._logical(found, Or)

    def conjunction(self, found: list[Any]) -> _Part:
        return self._logical(found, And)

    def negate(self, found: list[Any]) -> _Part:
        node = Not(_taken(found[1], _CONDITION, "NOT takes a condition"))
        return self._part(node, "condition", _offset(found[0]), found[1], deeper=1)

    def comparison(self, found: list[Any]) -> _Part:
        left, op, right = found
        if op in ("=", "<>"):
            allowed, where = _OPERAND, f"{op} compares values"
        else:
            allowed, where = _NUMBER, f"{op} compares numbers (strings and booleans take only = and <>)"
        node = Comparison(str(op), _taken(left, allowed, where), _taken(right, allowed, where))
        types = {_TYPES[part.kind] for part in (left, right) if part.kind in _TYPES}
        if len(types) > 1:
            raise _Flaw(left.offset, f"{op} compares values of one type, found {_A[left.kind]} and {_A[right.kind]}")
        return self._part(node, "condition", left.offset, left, right)

    def between(self, found: list[Any]) -> _Part:
        operand, negated, _, low, _, high = found
        first, least, most = (_taken(part, _NUMBER, "BETWEEN takes numbers") for part in (operand, low, high))
        node = Between(first, least, most, negated is not None)
        return self._part(node, "condition", operand.offset, operand, low, high)

    def _named(self, part: _Part, word: str) -> Name:
        node = _taken(part, "name", f"{word} takes a name on its left")
        assert isinstance(node, Name)
        return node

    def membership(self, found: list[Any]) -> _Part:
        values = tuple(_string(item) for item in found[2:] if isinstance(item, Token) and item.type == "STRING")
        node = In(self._named(found[0], "IN"), values, found[1] is not None)
        return self._part(node, "condition", found[0].offset)

    def like(self, found: list[Any]) -> _Part:
        operand, negated, _, pattern, _, escape = found
        character = None if escape is None else _string(escape)
        if character is not None and len(character) != 1:
            raise _Flaw(_offset(escape), f"the escape must be one character, found {len(character)}")
        if like_parts(_string(pattern), character) is None:
            raise _Flaw(_offset(pattern), "the pattern ends with its escape character")
        node = Like(self._named(operand, "LIKE"), _string(pattern), character, negated is not None)
        return self._part(node, "condition", operand.offset)

    def null_test(self, found: list[Any]) -> _Part:
        node = IsNull(self._named(found[0], "IS NULL"), found[2] is not None)
        return self._part(node, "condition", found[0].offset)

    def _arithmetic(self, found: list[Any]) -> _Part:
        nodes = [_taken(part, _NUMBER, f"{found[1]} takes numbers") for part in found[::2]]
        node = Arithmetic(nodes[0], tuple(zip(map(str, found[1::2]), nodes[1:], strict=True)))
        return self._part(node, "number", found[0].offset, *found[::2])

    def sum(self, found: list[Any]) -> _Part:
        return self._arithmetic(found)

    def product(self, found: list[Any]) -> _Part:
        return self._arithmetic(found)

    def sign(self, found: list[Any]) -> _Part:
        op, part = found
        if op == "-" and part.kind == "minus_only":
            return self._part(Literal(-(2**63)), "number", _offset(op), part, deeper=1)
        node = _taken(part, _NUMBER, f"{op} takes a number")
        if isinstance(node, Literal):
            assert isinstance(node.value, int | float)
            value = node.value if op == "+" else -node.value
            node = Literal(value if isinstance(value, float) else wrap_long(value))
        else:
            node = Sign(str(op), node)
        return self._part(node, "number", _offset(op), part, deeper=1)

    def string(self, found: list[Any]) -> _Part:
        return _Part(Literal(_string(found[0])), "string", _offset(found[0]))

    def integer(self, found: list[Any]) -> _Part:
        digits = found[0].rstrip("lL").lower()
        if digits.startswith(("0x", "0b")):
            value = int(digits, 0)
            if value >= 2**64:
                raise _Flaw(_offset(found[0]), "the number is too large: exact numbers are Java longs")
            return _Part(Literal(wrap_long(value)), "number", _offset(found[0]))
        if digits.startswith("0") and not re.fullmatch("[0-7]+", digits):
            raise _Flaw(_offset(found[0]), f"{digits} starts with 0, so it is octal, but 8 and 9 are not octal digits")
        value = int(digits, 8 if digits.startswith("0") else 10)
        if value == LONG_MAX + 1 and not digits.startswith("0"):
            return _Part(Literal(value), "minus_only", _offset(found[0]))
        if value > (2**64 - 1 if digits.startswith("0") else LONG_MAX):
            raise _Flaw(_offset(found[0]), "the number is too large: exact numbers are Java longs")
        return _Part(Literal(wrap_long(value)), "number", _offset(found[0]))

    def decimal(self, found: list[Any]) -> _Part:
        token = found[0]
        is_hex = token.type == "HEX_DECIMAL"
        digits = token.rstrip("fFdD")  # in a hexadecimal one these follow the decimal exponent, never hex digits
        try:
            value = float.fromhex(digits) if is_hex else float(digits)
            if token[-1] in "fF":
                value = struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            value = math.inf
        significand = re.split("[pP]" if is_hex else "[eE]", digits)[0]
        if math.isinf(value) or (value == 0.0 and re.search("[1-9a-fA-F]", significand[2 * is_hex :])):
            kind = "float" if token[-1] in "fF" else "double"
            raise _Flaw(_offset(token), f"{token} is out of the range of Java's {kind}")
        return _Part(Literal(value), "number", _offset(token))

    def boolean(self, found: list[Any]) -> _Part:
        return _Part(Literal(found[0].type == "TRUE"), "boolean", _offset(found[0]))

    def name(self, found: list[Any]) -> _Part:
        return _Part(Name(_checked_name(found[0])), "name", _offset(found[0]))

    def parenthesis(self, found: list[Any]) -> _Part:
        part = found[1]
        node = _taken(part, "name value number string boolean condition", "")
        kind = "value" if part.kind == "name" else part.kind
        return self._part(node, kind, _offset(found[0]), part, deeper=1)


def _keyword(token: Token) -> Token:
    """Keywords are names to the lexer. Only ASCII: the upper case of a dotless i is I."""
    upper = token.upper()
    return token.update(type=upper) if token.isascii() and upper in KEYWORDS else token


@lru_cache(maxsize=1)
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        lexer="basic",
        maybe_placeholders=True,
        transformer=_Builder(),
        lexer_callbacks={"NAME": _keyword},
    )


def parse_tree(text: str) -> Expression:
    """The tree of a selector's text. InvalidSelectorError names what is wrong, where, and what was expected."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise _invalid(text, error.start, "half a surrogate pair is not a character") from None
    if size > MAX_LENGTH_BYTES:
        raise InvalidSelectorError(f"Invalid selector: {size} bytes long, at most {MAX_LENGTH_BYTES} are allowed.")
    try:
        part = _parser().parse(text)
    except (_Flaw, UnexpectedInput, VisitError) as error:
        offset, what = _described(error, text)
    else:
        assert isinstance(part, _Part)
        return part.node
    raise _invalid(text, offset, what)


# -- errors in words ---------------------------------------------------------------------------------------------------
def _described(error: Exception, text: str) -> tuple[int, str]:
    """Where and what, for the exceptions of the lexer, the parser and the builder."""
    if isinstance(error, VisitError):
        error = error.orig_exc
    if isinstance(error, _Flaw):
        return error.offset, error.what
    if isinstance(error, UnexpectedCharacters):
        offset = error.pos_in_stream or 0
        hint = _HINTS.get(text[offset], "")
        return offset, f"found {text[offset]!r}, which starts nothing in a selector" + (f": {hint}" if hint else "")
    assert isinstance(error, UnexpectedToken)
    token: Token = error.token
    if token.type == "$END":
        return len(text.rstrip()), f"the selector ends here, expected {_expected(error.accepts)}"
    before = next(reversed(list(_parser().lex(text[: _offset(token)]))), None)
    if before is not None and before == XML_SELECTOR and token == "(":
        return _offset(
            before
        ), f"XML selectors ({XML_SELECTOR}) are refused: a selector reads headers and properties, not bodies"
    after = f" after {_short(before)}" if before is not None else ""
    return _offset(token), f"found {_short(token)}{after}{_hint(token, before)}, expected {_expected(error.accepts)}"


def _short(token: Token) -> str:
    shown = token if len(token) <= 40 else token[:37] + "..."
    return shown if token.type == "STRING" else f"'{shown}'"


def _hint(token: Token, before: Token | None) -> str:
    after = "" if before is None else before.type
    if token.type == "NULL":
        return " (compare with NULL by IS NULL or IS NOT NULL)"
    if token.type in ("INTEGER", "DECIMAL") and after in ("LPAR", "COMMA"):
        return " (a list of IN holds strings)"
    if token.type in KEYWORDS and after not in ("NAME", "STRING", "INTEGER", "DECIMAL", "RPAR"):
        return " (a keyword, not a name)"
    if token == "=" and after == "COMPARE":
        return " (equal is written =, not equal <>)"
    if token.startswith("_") and after == "INTEGER":
        return " (a number has no underscores)"
    return ""


def _expected(terminals: Any) -> str:
    known = sorted((name for name in terminals or () if name in _ORDER), key=_ORDER.index)
    words = list(dict.fromkeys(_WORDS.get(name, name) for name in known))
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else "something else"


def _invalid(text: str, offset: int, what: str) -> InvalidSelectorError:
    """The error with its line and column (from 1), that line of the text, and a caret under the place."""
    lines = re.split("\r\n|\r|\n", text[:offset])
    column = len(lines[-1])
    line = lines[-1] + re.split("[\r\n]", text[offset:], maxsplit=1)[0]
    start = max(0, column - 60)
    shown = "".join(c if c.isprintable() else " " for c in line[start : start + 110])
    return InvalidSelectorError(
        f"Invalid selector at line {len(lines)}, column {column + 1}: {what}.\n  {shown}\n  {' ' * (column - start)}^"
    )
