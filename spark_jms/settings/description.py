"""Settings as `jmsq describe` shows them: of one destination with their values, or all there are.

Features: C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from spark_jms.settings.destination import KEYS, DestinationSettings
from spark_jms.settings.table import REQUIRED, Setting
from spark_jms.settings.tables import GROUPS


@dataclass(frozen=True)
class Described:
    """`default` is None when there is none. `value` is in `unit`; `shown` is the value as people write it. `origin` is
    `module file`, `template NAME` or `default`; both it and the value are None in a list of all settings."""

    group: str
    name: str
    default: Any
    unit: str
    range: str
    since: str
    doc: str
    value: Any = None
    shown: str = ""
    origin: str | None = None


def describe(settings: DestinationSettings) -> list[Described]:
    """The settings of one destination."""
    return [_valued(row, settings) for row in KEYS.values()]


def _valued(row: Setting, settings: DestinationSettings) -> Described:
    value = getattr(settings, row.field)
    origin = "default" if value == row.default else "module file"
    if row.name in settings.inherited:
        origin = f"template {settings.template}"
    return replace(_described("module", row), value=value, shown=row.show(value), origin=origin)


def all_settings() -> Iterator[Described]:
    for group in GROUPS.values():
        for row in group.settings.values():
            yield _described(group.name, row)


def _described(group: str, row: Setting) -> Described:
    default = None if row.default is REQUIRED else row.default
    return Described(group, row.name, default, row.type.unit, row.type.range, row.since, row.doc)
