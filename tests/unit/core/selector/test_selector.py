"""Message selectors: grammar, errors, three-valued logic, stored forms (C7)."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_jms.core.selector import HEADER_COLUMNS, PROPERTIES_COLUMN, InvalidSelectorError, Selector
from tests.harness.messages.selector_messages import (
    Typed,
    chosen,
    selector,
    table_of,
)

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
    ("Country NOT IN ('UK')", {"Country": ("int", 5)}, False),
    ("Country IN ('UK')", {"Country": ("int", 5)}, False),
    ("NOT Country IN ('UK')", {"Country": ("int", 5)}, True),
    ("NOT Country NOT IN ('UK')", {"Country": ("boolean", True)}, True),
    ("NOT Country NOT IN ('UK')", {}, False),
    ("phone NOT LIKE '5'", {"phone": ("int", 5)}, False),
    ("NOT phone LIKE '5'", {"phone": ("int", 5)}, True),
    ("(weight > 5) = TRUE", CAR, True),
    ("(weight > 5) = FALSE", CAR, False),
    ("(weight > 5) <> FALSE", CAR, True),
    ("(weight > 5) = (color = 'blue')", CAR, True),
    ("(weight > 5) <> (color = 'blue')", CAR, False),
    ("(a > 5) = TRUE OR (a > 5) = FALSE OR (a > 5) <> TRUE", {}, False),
    ("NOT (a > 5) = TRUE", {}, False),
    ("(a IS NULL) = TRUE", {}, True),
    ("(a > 5) = flag", {"a": ("int", 6), "flag": ("boolean", True)}, True),
    ("(a > 5) = flag", {"a": ("int", 6), "flag": ("string", "true")}, False),
    ("flag = (NOT a > 5 AND TRUE)", {"a": ("int", 6), "flag": ("boolean", False)}, True),
    ("((a > 5) = TRUE) = FALSE", {"a": ("int", 1)}, True),
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
def test_examples_of_the_specification(text: str, properties: Mapping[str, Typed], expected: bool) -> None:
    """C7: the examples of the specification, and its rules for types, NULL and numbers."""
    properties = {name: value for name, value in properties.items() if name not in HEADER_COLUMNS}
    assert chosen(text, properties) == [expected]


def test_three_valued_logic() -> None:
    """C7: AND, OR and NOT over true, false and unknown."""
    rows: list[dict[str, Typed]] = [{}, {"p": ("boolean", True)}, {"p": ("boolean", False)}]
    assert chosen("(p AND TRUE) OR (p IS NULL AND FALSE)", *rows) == [False, True, False]
    assert chosen("NOT (p AND FALSE)", *rows) == [True, True, True]
    assert chosen("NOT (p AND TRUE)", *rows) == [False, False, True]
    assert chosen("p OR TRUE", *rows) == [True, True, True]
    assert chosen("NOT (p OR FALSE)", *rows) == [False, False, True]


def test_header_fields_are_compared() -> None:
    """C7: the delivery mode compares as its JMS name, the other headers as stored."""
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
    ("TRUE = 0", 1, 1, "= compares values of one type, found TRUE or FALSE and a number", ""),
    ("FALSE = 'a'", 1, 1, "= compares values of one type, found TRUE or FALSE and a string", ""),
    ("b AND 'a' <> 1", 1, 7, "<> compares values of one type, found a string and a number", ""),
    ("a + 1 = 'x'", 1, 1, "= compares values of one type, found a number and a string", ""),
    ("(a > 5) = 1", 1, 1, "= compares values of one type, found a condition and a number", ""),
    ("(a > 5) > 1", 1, 1, "> compares numbers", "found a condition"),
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
    ("(" * 257 + "a" + ")" * 257, 1, 1, "nested more than 256 deep", ""),
    ("NOT " * 257 + "a", 1, 1, "nested more than 256 deep", ""),
]


@pytest.mark.parametrize(("text", "line", "column", "what", "expected"), ERRORS)
def test_errors_name_place_and_expectation(text: str, line: int, column: int, what: str, expected: str) -> None:
    """C7: an error names what is wrong and where, marks it with a caret, and names what was expected."""
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
def test_reserved_names_are_refused(name: str) -> None:
    """C7: the error names the refused header, delivery count or reserved property."""
    with pytest.raises(InvalidSelectorError, match=f"{name} cannot be used in a selector"):
        Selector.parse(f"a = 1 AND {name} = 1")


def test_blank_text_is_no_selector() -> None:
    """C7: no text, empty text and blank text select everything, as in JMS."""
    assert [Selector.parse(text) for text in (None, "", " \t\r\n ")] == [None, None, None]
    with pytest.raises(InvalidSelectorError, match="found int"):
        Selector.parse(5)  # type: ignore[arg-type]


def test_length_and_depth_are_limited() -> None:
    """C7: 128 KiB and 256 levels are accepted and evaluated, one more is refused."""
    deepest = "(NOT a OR " * 128 + "a" + ")" * 128
    compared = "(" * 256 + "a" + " = TRUE)" * 256
    for text in ("(" * 256 + "a" + ")" * 256, deepest, compared, "a = " + "(1 + 1 * " * 256 + "1" + ")" * 256):
        assert len(chosen(text, {"a": ("boolean", True)})) == 1
    assert chosen(compared, {"a": ("boolean", True)}, {"a": ("boolean", False)}, {}) == [True, False, False]
    terms = " AND ".join(["a"] * 10_000)
    assert chosen(terms, {"a": ("boolean", True)}, {}) == [True, False]
    exact = "a = '" + "x" * (128 * 1024 - 6) + "'"
    assert Selector.parse(exact) is not None
    with pytest.raises(InvalidSelectorError, match="131073 bytes long, at most 131072"):
        Selector.parse(exact + " ")


def test_programs_may_generate_long_selectors() -> None:
    """C7: 1,000 OR terms, 200 parentheses, 200 NOTs, and 200 conditions in one another."""
    row: dict[str, Typed] = {"a": ("long", 999), "flag": ("boolean", True)}
    other: dict[str, Typed] = {"a": ("long", 1000), "flag": ("boolean", False)}
    terms = " OR ".join(f"(a = {n} AND name_of_the_customer <> 'number {n} of many')" for n in range(1000))
    names: dict[str, Typed] = {**row, "name_of_the_customer": ("string", "x")}
    assert chosen(terms, names, {**other, "name_of_the_customer": ("string", "x")}) == [True, False]
    assert chosen("(" * 200 + "a = 999" + ")" * 200, row, other) == [True, False]
    assert chosen("NOT " * 200 + "flag", row, other) == [True, False]
    assert chosen("NOT " * 201 + "flag", row, other) == [False, True]
    assert chosen("(flag AND " * 200 + "a = 999" + ")" * 200, row, other) == [True, False]


# -- the value ---------------------------------------------------------------------------------------------------------
def test_selector_names_its_identifiers_and_columns() -> None:
    """C7: a selector names its identifiers, so that a planner reads only their columns."""
    found = selector("JMSType = 'x' AND color LIKE 'r%' OR JMSPriority > 3 + JMSXGroupSeq AND color IS NULL")
    assert found.identifiers == {"JMSType", "color", "JMSPriority", "JMSXGroupSeq"}
    assert found.columns == ("JMSPriority", "JMSType", "JMSXGroupSeq", "properties")
    assert selector("JMSPriority = 1").columns == ("JMSPriority",)
    assert selector("TRUE").columns == ()
    assert selector("JMS_x = 1").columns == ("properties",)


def test_prunable_comparisons() -> None:
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
    """C7: importing the module stays cheap."""
    code = (
        "import sys; from spark_jms.core.selector import Selector; assert 'lark' not in sys.modules; "
        "Selector.parse('a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- stored forms ------------------------------------------------------------------------------------------------------
def properties_table(maps: list[Any]) -> pa.Table:
    return pa.table({"properties": pa.array(maps, pa.map_(pa.string(), pa.string()))})


def test_unparsable_property_is_null() -> None:
    """C7: a stored value that does not parse as its declared type is NULL, and leaves its neighbours intact."""
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


def test_stored_maps_are_read() -> None:
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


def test_null_map_hides_its_entries() -> None:
    """C7: Arrow allows a null map whose offsets span entries; the entries do not count."""
    full = pa.array([[("a", "x")], [("a", "x")]], pa.map_(pa.string(), pa.string()))
    entries = full.buffers()
    hidden = pa.Array.from_buffers(full.type, 2, [pa.py_buffer(b"\x01"), entries[1]], children=[full.values])
    assert selector("a = 'x'").mask(pa.table({"properties": hidden})).tolist() == [True, False]


def test_column_encodings_are_read() -> None:
    """C7: dictionary-encoded, large, view, narrow and all-null header columns."""
    texts = pa.array(["x", None, "y"])
    for column in (texts, texts.dictionary_encode(), texts.cast(pa.large_string()), texts.cast(pa.string_view())):
        assert selector("JMSType = 'x' OR JMSType LIKE 'y%'").mask(pa.table({"JMSType": column})).tolist() == [
            True,
            False,
            True,
        ]
        assert selector("JMSType IN ('y')").mask(pa.table({"JMSType": column})).tolist() == [False, False, True]
    assert selector("JMSType IS NULL").mask(pa.table({"JMSType": pa.nulls(2)})).tolist() == [True, True]
    assert selector("JMSPriority > 4").mask(pa.table({"JMSPriority": pa.array([9, 4], pa.int8())})).tolist() == [
        True,
        False,
    ]
    with pytest.raises(ValueError, match="JMSPriority is double"):
        selector("JMSPriority > 4").mask(pa.table({"JMSPriority": [1.0]}))


def test_missing_column_is_refused() -> None:
    """C7: a table without a column that the selector needs is refused; a table without rows is accepted."""
    with pytest.raises(ValueError, match="needs column properties; the table has JMSType"):
        selector("JMSType = 'x' AND a = 1").mask(pa.table({"JMSType": ["x"]}))
    assert selector("TRUE").mask(pa.table({"JMSType": ["x", "y"]})).tolist() == [True, True]
    assert selector("a = 1").mask(properties_table([])).tolist() == []


def test_numpy_numbers_are_accepted() -> None:
    """C7: `matches` accepts numpy numbers; an integer that fits no Java type is NULL, any other type is unlike."""
    found = selector("a = 5")
    assert all(found.matches({}, {"a": value}) for value in (np.int32(5), np.float32(5), np.float64(5), 5.0))
    assert selector("a IS NULL").matches({}, {"a": 2**63})
    assert not selector("a = 5 OR a IS NULL").matches({}, {"a": b"5"})


def test_long_like_pattern_is_evaluated() -> None:
    """C7: a pattern too large for Arrow's regular expressions, and one that takes naive matching exponential time."""
    wide = "_" * 8000
    assert chosen(f"a LIKE '{wide}%'", {"a": ("string", "é" * 8000)}, {"a": ("string", "x")}, {}) == [
        True,
        False,
        False,
    ]
    assert chosen(f"a LIKE '{'%a' * 60}b'", {"a": ("string", "a" * 300)}) == [False]


def test_many_small_chunks_give_one_mask() -> None:
    """C7: a table of many chunks gets the same mask as the whole table."""
    one = properties_table([[("a", "1"), ("JMS_JMSQ_Types", "a:int")], [("a", "1")]])
    assert selector("a = 1").mask(pa.concat_tables([one] * 50)).tolist() == [True, False] * 50


def test_unknown_delivery_mode_is_null() -> None:
    """C7: a mode that JMS does not have is NULL."""
    table = pa.table({"JMSDeliveryMode": pa.array([1, 2, 3, None], pa.int32())})
    assert selector("JMSDeliveryMode IS NULL").mask(table).tolist() == [False, False, True, True]
    assert PROPERTIES_COLUMN == "properties"
