"""What happens to expired messages, and what is logged of them.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import attrs

from spark_jms.settings.destination_key import PROPERTY_NAME
from spark_jms.settings.types import FullForm, NotAllowed, near_to

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
_WRITTEN = f"header fields and properties, {ALL_HEADERS} or {ALL_PROPERTIES}, such as 'JMSPriority, {ALL_PROPERTIES}'"


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
                raise NotAllowed(_WRITTEN)
            if _is_header(name):
                near = near_to(name, HEADER_FIELDS)
                raise NotAllowed(
                    f"{_WRITTEN}; the header fields are {', '.join(HEADER_FIELDS)}{f' (did you mean {near}?)' if near else ''}"
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

    range: str = _WRITTEN

    def parsed(self, written: str) -> LoggedFields:
        return LoggedFields.parse(written)
