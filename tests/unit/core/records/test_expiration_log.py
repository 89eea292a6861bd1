"""What the log tells of an expired message: the texts' format, letter by letter (T6)."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.core.records.expiration import LONGEST, SHOWN, columns_of, entry
from spark_jms.settings.fields import HEADER_FIELDS, LoggedFields
from spark_jms.settings.types import NotAllowed

NAMES = st.from_regex(r"[A-Z][a-z]{0,8}", fullmatch=True).filter(lambda name: not name.startswith("JMS"))
# What XML can have; a parser turns a carriage return into a line feed unless it is escaped, as it is here.
TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\ufffe\uffff"), max_size=40)


def shown(policy: str, headers: dict[str, object], properties: dict[str, str | None], id: str = "ID:1-0") -> str:
    fields = LoggedFields.parse(policy)
    row: dict[str, object] = dict.fromkeys(columns_of(fields))
    return entry({**row, **headers, "JMSMessageID": id}, properties, fields)


def test_examples_of_the_text() -> None:
    """T6: as they are written there, with the space between two properties that one of them lacks."""
    car = {"Make": "Honda", "Model": "Civic", "Color": "White", "Weight": "2680"}
    headers: dict[str, object] = {"JMSPriority": 7, "JMSRedelivered": False}
    assert shown("JMSPriority, JMSRedelivered, %properties%", headers, dict(car), "ID:P<851839.1022176920343.0") == (
        "<ExpiredJMSMessage JMSMessageID='ID:P<851839.1022176920343.0' >\n"
        " <HeaderFields JMSPriority='7' JMSRedelivered='false' />\n"
        " <UserProperties Make='Honda' Model='Civic' Color='White' Weight='2680' />\n"
        "</ExpiredJMSMessage>"
    )
    assert shown("", {}, dict(car), "ID:N<223476.1022177121567.1") == (
        "<ExpiredJMSMessage JMSMessageID='ID:N<223476.1022177121567.1' />"
    )
    three = {"First": "Any string longer than 32 characters", "Second": None, "Third": ""}
    assert shown("First, Second, Third", {}, dict(three), "ID:N<851839.1022176920344.0") == (
        "<ExpiredJMSMessage JMSMessageID='ID:N<851839.1022176920344.0' >\n"
        " <UserProperties First='Any string longer than 32 char ...' Second=null Third='' />\n"
        "</ExpiredJMSMessage>"
    )


def test_lines_without_fields_are_left_out() -> None:
    """T6: a property that the message does not have is not shown; a line of none is not there."""
    assert shown("JMSPriority, Missing", {"JMSPriority": 4}, {"other": "x"}) == (
        "<ExpiredJMSMessage JMSMessageID='ID:1-0' >\n <HeaderFields JMSPriority='4' />\n</ExpiredJMSMessage>"
    )
    assert shown("Missing, %properties%", {}, {}) == "<ExpiredJMSMessage JMSMessageID='ID:1-0' />"


def test_all_header_fields_and_the_properties_of_jms() -> None:
    """T6: %header% names every header field, those without a value too; JMSX… are properties, named one by one."""
    text = shown("%header%, JMSXGroupID, JMSXGroupSeq", {"JMSPriority": 4, "JMSXGroupID": "g"}, {})
    assert text.splitlines()[1].count("=null") == len(HEADER_FIELDS) - 1
    assert [word.split("=")[0] for word in text.splitlines()[1].split()[1:-1]] == list(HEADER_FIELDS)
    assert text.splitlines()[2] == " <UserProperties JMSXGroupID='g' />"
    assert set(columns_of(LoggedFields.parse("%header%, %properties%, JMSXDeliveryCount"))) <= set(COLUMNS)


def test_internal_properties_are_not_shown() -> None:
    """T6, C2: entries that tell how the message is stored are not the application's."""
    ours: dict[str, str | None] = {"JMS_JMSQ_Types": "a:int", "JMS_JMSQ_BodyType": "map", "JMS_JMSQ_Compressed": "text"}
    assert shown("%properties%", {}, {"a": "1", **ours}).splitlines()[1] == " <UserProperties a='1' />"


@given(st.dictionaries(NAMES, TEXTS, max_size=4), st.dictionaries(st.sampled_from(HEADER_FIELDS), TEXTS, max_size=3))
def test_entry_without_nulls_is_xml(properties: dict[str, str], headers: dict[str, str]) -> None:
    """T6: quotes, markup and line ends are escaped, and a parser gives the values back, shortened as the text says."""
    policy = ", ".join([*headers, "%properties%"])
    root = ElementTree.fromstring(shown(policy, dict(headers), dict(properties)))
    assert (root.tag, root.attrib) == ("ExpiredJMSMessage", {"JMSMessageID": "ID:1-0"})
    lines = {line.tag: line.attrib for line in root}
    for tag, given_values in (("HeaderFields", headers), ("UserProperties", properties)):
        assert lines.pop(tag, {}) == {name: limited(value) for name, value in given_values.items()}
    assert lines == {}


def limited(value: str) -> str:
    cut = value if len(value) <= LONGEST else value[:SHOWN] + " ..."
    return "".join(c if c >= " " or c in "\t\n\r" else "\ufffd" for c in cut)


@given(st.dictionaries(NAMES, st.none() | TEXTS, max_size=4))
def test_entry_takes_one_line_for_each_kind_of_field(properties: dict[str, str | None]) -> None:
    """T6: whatever the values are, and none is longer than the text allows, its mark included."""
    text = shown("%properties%", {}, properties)
    assert text.splitlines() == text.split("\n")
    assert len(text.split("\n")) == (3 if properties else 1)
    assert all(f"{name}=null" in text for name, value in properties.items() if value is None)


@pytest.mark.parametrize(
    ("written", "full"),
    [
        ("", ""),
        (" JMSPriority,Name ,  Address", "JMSPriority, Name, Address"),
        ("%Header%, Name, Name", "%header%, Name"),
        ("JMSCorrelationID, %properties%", "JMSCorrelationID, %properties%"),
        ("JMSMessageID", ""),
    ],
)
def test_logged_fields_have_one_full_form(written: str, full: str) -> None:
    """T6: and it reads as itself."""
    assert str(LoggedFields.parse(written)) == full
    assert LoggedFields.parse(full) == LoggedFields.parse(written)


@pytest.mark.parametrize(
    ("written", "said"), [("%body%", "%properties%"), ("a b", "header"), ("JMSPrio", "JMSPriority")]
)
def test_wrong_logged_fields_are_refused(written: str, said: str) -> None:
    """T6: with what is allowed."""
    with pytest.raises(NotAllowed, match=said):
        LoggedFields.parse(written)
