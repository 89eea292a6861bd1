"""The settings of a quota: keys of the module file, under `quotas:`. The names are those of WebLogic's QuotaBean.

To add a key, add a line at the end of QuotaSettings, and run `make options`. Stored quotas that lack the key have its default.

Features: T1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from spark_jms.errors import ModuleFileError
from spark_jms.settings.table import Setting, Table, setting, settings_of
from spark_jms.settings.types import Choice, Flag, SizeOrNone, Whole

NO_MAXIMUM = -1
SERVER_QUOTA = "server+"  # before a server's name: the name of its quota, which no other quota can have
BYTES_MAXIMUM = SizeOrNone(high="1048576 GiB")
POLICIES = {
    "FIFO": "no send overtakes one for the same destination that has waited longer",
    "Preemptive": "any send that fits goes ahead, so large ones may starve",
}


@attrs.frozen
class QuotaSettings(Table):
    """The keys of one quota."""

    messages_maximum: int = setting(
        "messagesMaximum",
        Whole(NO_MAXIMUM),
        NO_MAXIMUM,
        "How many unfinished messages its destinations may have, including those in flight, delayed or not visible yet. "
        "A topic's message counts once. -1: no maximum; 0: none at all.",
    )
    bytes_maximum: int = setting(
        "bytesMaximum",
        BYTES_MAXIMUM,
        NO_MAXIMUM,
        "How many bytes these messages may have, as they were sent, with 512 for the headers of each. -1: no maximum.",
    )
    shared: bool = setting(
        "shared",
        Flag(),
        True,
        "Whether the destinations with this quota share its maximum. `false`: each of their members has the maximum for itself.",
    )
    policy: str = setting("policy", Choice(POLICIES), "FIFO", "Who gets room while senders wait for it.")

    @property
    def has_maximum(self) -> bool:
        return self.messages_maximum != NO_MAXIMUM or self.bytes_maximum != NO_MAXIMUM

    def refusal(self, row: Setting, value: object, allowed: str) -> ModuleFileError:
        return ModuleFileError(f"{row.name} of a quota is {value!r}, but must be {allowed}")


QUOTA_KEYS = settings_of(QuotaSettings)


def to_stored(quota: QuotaSettings) -> dict[str, Any]:
    return {name: getattr(quota, row.field) for name, row in QUOTA_KEYS.items()}


def from_stored(stored: Mapping[str, Any]) -> QuotaSettings:
    """Raises KeyError for a key that this version does not know, and ModuleFileError."""
    return QuotaSettings(**{QUOTA_KEYS[name].field: value for name, value in stored.items()})
