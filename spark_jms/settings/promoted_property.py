"""A promoted property: a property of messages that is also a column of the destination's table.

Features: C7 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from spark_jms.settings.destination_key import KEY_TYPES, PROPERTY_NAME
from spark_jms.settings.types import FullForm, NotAllowed

MAX_PROMOTED = 16  # each adds its statistics to the log for each file
# Columns of our tables that are named like a property. Those that later versions add begin with JMS.
TABLE_COLUMNS = ("text", "body", "properties", "member", "sequence", "ordinal", "first_sequence", "acknowledged_ms")
WHOLE_TYPES = ("byte", "short", "int", "long")
_WRITTEN = f"NAME:TYPE, such as 'amount:double'; TYPE is one of {', '.join(KEY_TYPES)}"


@attrs.frozen
class PromotedProperty:
    """`name` is that of the property and of the column."""

    name: str
    type: str

    @staticmethod
    def parse(written: str) -> PromotedProperty:
        """Raises NotAllowed."""
        name, _, kind = (part.strip() for part in written.partition(":"))
        if not PROPERTY_NAME.match(name) or kind not in KEY_TYPES:
            raise NotAllowed(_WRITTEN)
        if name.upper().startswith("JMS"):
            raise NotAllowed(f"{_WRITTEN}. Names that begin with JMS are columns and properties of JMS and spark-jms")
        if name.lower() in TABLE_COLUMNS:
            raise NotAllowed(f"{_WRITTEN}. The table has a column {name.lower()!r} of another meaning")
        return PromotedProperty(name, kind)

    def __str__(self) -> str:
        return f"{self.name}:{self.type}"


@attrs.frozen
class PromotedText(FullForm):
    """A promoted property as text."""

    range: str = _WRITTEN

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
