"""When messages expire, who counts them, and what the log tells of them. Pure.

A message expires when its time is over, no consumer has it and no transfer takes it. The holder of its record set finishes
it there, so it is counted once, whether a consumer's plan or the scan of a process found it:

    Discard, Log    `RecordSet.expire`: finished and counted in one write; Log tells of it when that is written
    Redirect        a transfer to the error destination, which EXPIRER makes: counted when the transfer ends there

Each is a row of the acknowledgement table (endings.py).

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from spark_jms.core.messages.columns import BODY_TYPE_PROPERTY
from spark_jms.core.messages.compression import COMPRESSED_PROPERTY
from spark_jms.core.messages.properties import TYPES_PROPERTY
from spark_jms.settings.fields import MESSAGE_ID, LoggedFields

REASON = "found expired"
NEVER = 2**63 - 1
LONGEST, SHOWN = 32, 30
_OURS = (TYPES_PROPERTY, BODY_TYPE_PROPERTY, COMPRESSED_PROPERTY)
_JMSX = ("JMSXGroupID", "JMSXGroupSeq", "JMSXDeliveryCount")  # properties to JMS, columns here
_CONTROLS = {
    **dict.fromkeys([*range(32), 0xFFFE, 0xFFFF], "\ufffd"),  # XML cannot have them, even escaped
    **{code: f"&#{code};" for code in (9, 10, 13, *range(0x7F, 0xA0), 0x2028, 0x2029)},
    ord("'"): "&apos;",
}
_ESCAPES = {**_CONTROLS, ord("&"): "&amp;", ord("<"): "&lt;"}


class DueLooks:
    """When each file, or a record set as it was, has to be looked at again: messages of it expire then, and none of it is over and
    unfinished."""

    def __init__(self) -> None:
        self._next_ms: dict[str, int] = {}

    def is_due(self, what: str, now_ms: int) -> bool:
        return now_ms >= self._next_ms.get(what, 0)

    def looked(self, what: str, next_ms: int) -> None:
        self._next_ms[what] = next_ms

    def keep(self, known: Container[str]) -> None:
        """Forget all others."""
        self._next_ms = {what: when for what, when in self._next_ms.items() if what in known}


# -- what the log tells of an expired message --------------------------------------------------------------------------
def columns_of(fields: LoggedFields) -> tuple[str, ...]:
    """The message columns that `entry` reads."""
    jmsx = [name for name in _JMSX if name in fields.properties]
    rest = ["properties"] if fields.all_properties or set(fields.properties) - set(_JMSX) else []
    return (MESSAGE_ID, *fields.headers, *jmsx, *rest)


def entry(row: Mapping[str, object], properties: Mapping[str, str | None], fields: LoggedFields) -> str:
    """The line of the log that tells of an expired message, in the texts' format. `row`: the message's columns. `properties` as they
    are stored.

        <ExpiredJMSMessage JMSMessageID='ID:…' >
         <HeaderFields JMSPriority='7' JMSRedelivered='false' />
         <UserProperties Make='Honda' Model='Civic' />
        </ExpiredJMSMessage>

    Without header fields there is no line for them, nor for properties without properties; without both the entry is
    `<ExpiredJMSMessage JMSMessageID='ID:…' />`. A requested field that the message does not have is left out; one without a
    value is `Name=null`, an empty string is `Name=''`.

    Where the format contradicts itself, we follow its examples: the attribute is JMSMessageID, values stand in single quotes,
    and a string of more than 32 characters is shown as its first 30 and " ...". Within a value, the quote, `&`, `<` and control
    characters are escaped as in XML; the id is the exact string, as in the examples, though a `<` in it is not XML. spark-jms
    gives ids without such characters, so an entry without nulls is XML.
    """
    names = dict.fromkeys([*(properties if fields.all_properties else ()), *fields.properties])
    values = {**properties, **{name: row[name] for name in _JMSX if row.get(name) is not None}}
    lines = [
        _line("HeaderFields", [(name, row[name]) for name in fields.headers]),
        _line("UserProperties", [(name, values[name]) for name in names if name in values and name not in _OURS]),
    ]
    opening = f"<ExpiredJMSMessage {MESSAGE_ID}='{str(row[MESSAGE_ID]).translate(_CONTROLS)}' "
    shown = [line for line in lines if line]
    return "\n".join([f"{opening}>", *shown, "</ExpiredJMSMessage>"]) if shown else f"{opening}/>"


def _line(name: str, values: Iterable[tuple[str, object]]) -> str:
    shown = " ".join(f"{field}={_value(value)}" for field, value in values)
    return f" <{name} {shown} />" if shown else ""


def _value(value: object) -> str:
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"'{_escaped(text if len(text) <= LONGEST else f'{text[:SHOWN]} ...')}'"


def _escaped(text: str) -> str:
    return text.translate(_ESCAPES)
