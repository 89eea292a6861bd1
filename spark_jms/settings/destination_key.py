"""A destination key: a header or property by which a destination is sorted, and the direction.

Features: T15 (docs/FEATURES.md)
"""

from __future__ import annotations

import re

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
_WRITTEN = "PROPERTY [ascending or descending] [type], such as 'JMSPriority descending' or 'amount ascending double'"


@attrs.frozen
class DestinationKey:
    """`type` counts only for a user property; a header has its own."""

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
            raise NotAllowed(_WRITTEN)
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

    range: str = _WRITTEN

    def parsed(self, written: str) -> DestinationKey:
        return DestinationKey.parse(written)
