"""Values of a destination's settings that have parts: destination keys, logged fields, promoted properties, thresholds, life events.

Features: C7, T5, T6, T15 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

import attrs

from spark_jms.settings.types import FullForm, NotAllowed, near_to

ARRIVAL, REDELIVERED = "JMSMessageID", "JMSRedelivered"
HEADERS = (
    ARRIVAL,
    "JMSTimestamp",
    "JMSCorrelationID",
    "JMSPriority",
    "JMSExpiration",
    "JMSType",
    REDELIVERED,
    "JMSDeliveryTime",
    "JMSXGroupID",
)
KEY_TYPES = ("string", "boolean", "byte", "short", "int", "long", "float", "double")
DIRECTIONS = ("ascending", "descending")
PROPERTY_NAME = re.compile(r"[^\W\d][\w$]*\Z")
_KEY_WRITTEN = (
    "PROPERTY [ascending or descending] [type], such as 'JMSPriority descending' or 'amount ascending double'"
)


@attrs.frozen
class DestinationKey:
    """A header or property by which a destination is sorted, and the direction. `type` counts only for a user property; a header has
    its own."""

    name: str
    descending: bool = False
    type: str = "string"

    @staticmethod
    def parse(written: str) -> DestinationKey:
        """Raises NotAllowed."""
        name, *rest = written.split() or [""]
        words = [word.lower() for word in rest]
        direction = words.pop(0) if words and words[0] in DIRECTIONS else "ascending"
        kind = words.pop(0) if words else "string"
        if words or kind not in KEY_TYPES or not PROPERTY_NAME.match(name):
            raise NotAllowed(_KEY_WRITTEN)
        is_header = name.startswith("JMS") and not name.startswith("JMS_")
        if is_header and name not in HEADERS:
            near = near_to(name, HEADERS)
            raise NotAllowed(
                f"a property, or a header of {', '.join(HEADERS)}{f' (did you mean {near}?)' if near else ''}"
            )
        return DestinationKey(name, direction == "descending", "string" if is_header else kind)

    @property
    def column(self) -> str:
        """The message column that holds it."""
        return self.name if self.name in HEADERS else "properties"

    def __str__(self) -> str:
        words = [self.name, DIRECTIONS[self.descending]]
        return " ".join(words if self.column != "properties" else [*words, self.type])


@attrs.frozen
class KeyText(FullForm):
    """A destination key as text, in its full form."""

    range: str = _KEY_WRITTEN

    def parsed(self, written: str) -> DestinationKey:
        return DestinationKey.parse(written)


# -- what happens to expired messages, and what is logged of them ------------------------------------------------------
DISCARD, LOG, REDIRECT = "Discard", "Log", "Redirect"
EXPIRATION_POLICIES = {
    DISCARD: "they are finished",
    LOG: "they are finished, and the logger `spark_jms.expiration` names each",
    REDIRECT: "they move to the `errorDestination`, where they do not expire again",
}
ALL_HEADERS, ALL_PROPERTIES = "%header%", "%properties%"
MESSAGE_ID = "JMSMessageID"
HEADER_FIELDS = (
    "JMSCorrelationID",
    "JMSDeliveryMode",
    "JMSDeliveryTime",
    "JMSDestination",
    "JMSExpiration",
    "JMSPriority",
    "JMSRedelivered",
    "JMSReplyTo",
    "JMSTimestamp",
    "JMSType",
)
_FIELDS_WRITTEN = (
    f"header fields and properties, {ALL_HEADERS} or {ALL_PROPERTIES}, such as 'JMSPriority, {ALL_PROPERTIES}'"
)


@attrs.frozen
class LoggedFields:
    """What the log tells of an expired message beside its id: `names` of header fields and properties, or what stands for all
    of them, each once."""

    names: tuple[str, ...] = ()

    @staticmethod
    def parse(written: str) -> LoggedFields:
        """Raises NotAllowed."""
        given = [part.strip() for part in written.split(",")] if written.strip() else []
        names = [name.lower() if name.lower() in (ALL_HEADERS, ALL_PROPERTIES) else name for name in given]
        for name in names:
            if name in (ALL_HEADERS, ALL_PROPERTIES, MESSAGE_ID, *HEADER_FIELDS):
                continue
            if not PROPERTY_NAME.match(name):
                raise NotAllowed(_FIELDS_WRITTEN)
            if _is_header(name):
                near = near_to(name, HEADER_FIELDS)
                raise NotAllowed(
                    f"{_FIELDS_WRITTEN}; the header fields are {', '.join(HEADER_FIELDS)}{f' (did you mean {near}?)' if near else ''}"
                )
        return LoggedFields(tuple(name for name in dict.fromkeys(names) if name != MESSAGE_ID))

    @property
    def headers(self) -> list[str]:
        every = HEADER_FIELDS if self.all_headers else ()
        return list(dict.fromkeys([*every, *(name for name in self.names if name in HEADER_FIELDS)]))

    @property
    def properties(self) -> list[str]:
        """Those that are named."""
        return [name for name in self.names if not name.startswith("%") and not _is_header(name)]

    @property
    def all_headers(self) -> bool:
        return ALL_HEADERS in self.names

    @property
    def all_properties(self) -> bool:
        return ALL_PROPERTIES in self.names

    def __str__(self) -> str:
        return ", ".join(self.names)


def _is_header(name: str) -> bool:
    return name.startswith("JMS") and not name.startswith(("JMSX", "JMS_"))


@attrs.frozen
class LoggedFieldsText(FullForm):
    """The fields as text, in their full form."""

    range: str = _FIELDS_WRITTEN

    def parsed(self, written: str) -> LoggedFields:
        return LoggedFields.parse(written)


# -- promoted properties -----------------------------------------------------------------------------------------------
MAX_PROMOTED = 16  # each adds its statistics to the log for each file
# Columns of our tables that are named like a property. Those that later versions add begin with JMS.
TABLE_COLUMNS = ("text", "body", "properties", "member", "sequence", "ordinal", "first_sequence", "acknowledged_ms")
WHOLE_TYPES = ("byte", "short", "int", "long")
_PROPERTY_WRITTEN = f"NAME:TYPE, such as 'amount:double'; TYPE is one of {', '.join(KEY_TYPES)}"


@attrs.frozen
class PromotedProperty:
    """A property of messages that is also a column of the destination's table. `name` is that of the property and of the column."""

    name: str
    type: str

    @staticmethod
    def parse(written: str) -> PromotedProperty:
        """Raises NotAllowed."""
        name, _, kind = (part.strip() for part in written.partition(":"))
        if not PROPERTY_NAME.match(name) or kind not in KEY_TYPES:
            raise NotAllowed(_PROPERTY_WRITTEN)
        if name.upper().startswith("JMS"):
            raise NotAllowed(
                f"{_PROPERTY_WRITTEN}. Names that begin with JMS are columns and properties of JMS and spark-jms"
            )
        if name.lower() in TABLE_COLUMNS:
            raise NotAllowed(f"{_PROPERTY_WRITTEN}. The table has a column {name.lower()!r} of another meaning")
        return PromotedProperty(name, kind)

    def __str__(self) -> str:
        return f"{self.name}:{self.type}"


@attrs.frozen
class PromotedText(FullForm):
    """A promoted property as text."""

    range: str = _PROPERTY_WRITTEN

    def parsed(self, written: str) -> PromotedProperty:
        return PromotedProperty.parse(written)


def doubled(written: Sequence[str]) -> str | None:
    """What is wrong with a list of promoted properties as a whole. Column names differ by more than upper and lower case."""
    if len(written) > MAX_PROMOTED:
        return f"names {len(written)} properties, but may have at most {MAX_PROMOTED}"
    names: dict[str, str] = {}
    for name in (PromotedProperty.parse(each).name for each in written):
        if known := names.get(folded(name)):
            return (
                f"names {known!r} and {name!r}, but columns of a Delta table differ by more than upper and lower case"
            )
        names[folded(name)] = name
    return None


def folded(name: str) -> str:
    """As Delta compares names of columns."""
    return name.casefold()


# -- thresholds, high and low, of destinations and servers -------------------------------------------------------------
NO_THRESHOLD = -1


def wrong_pair(name: str, high: int, low: int) -> str | None:
    """What does not fit in the thresholds `<name>ThresholdHigh` and `…Low`; None: nothing."""
    if high == NO_THRESHOLD:
        return None if low == NO_THRESHOLD else f"{name}ThresholdLow is {low}, but {name}ThresholdHigh is missing"
    if high < 2:
        return f"{name}ThresholdHigh is {high}, but must be -1 (no threshold), or 2 or more"
    if not 1 <= low < high:
        given = "missing" if low == NO_THRESHOLD else str(low)
        return f"{name}ThresholdLow is {given}, but must be 1 to {high - 1}: below {name}ThresholdHigh"
    return None


# -- life-cycle log ----------------------------------------------------------------------------------------------------
class LifeEvent(Enum):
    """`value` stands in the table."""

    SENT = "sent"
    CLAIMED = "claimed"
    ACKNOWLEDGED = "acknowledged"
    RELEASED = "released"
    EXPIRED = "expired"
    REFUSED = "refused"
    SKIPPED = "skipped"
    TRANSFERRED = "transferred"
    REMOVED = "removed"
