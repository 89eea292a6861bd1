"""The options of format("jmsq"), read once at the edge (C1, C6, C7)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from spark_jms.errors import OptionError, TriggerError
from spark_jms.settings.duration import parse_duration_ms

VIEWS = ("messages", "all", "acknowledgements", "claims", "subscriptions")
_COMMON = {"root", "destination", "path"}
_READ = {"subscription", "selector", "columns", "failOnDataLoss", "view"}
_STREAM = {
    "startingPosition",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "maxTriggerDelay",
    "inDoubtTimeout",
}
_WRITE = {"checkpointLocation", "txnAppId", "txnVersion"}
ACCEPTED = sorted(_COMMON | _READ | _STREAM | _WRITE)
# Spark adds these by itself (SQL tables, query names); they mean nothing here.
_FROM_SPARK = {
    "queryname",
    "serialization.format",
    "provider",
    "owner",
    "external",
    "location",
    "comment",
    "collation",
    "is_managed_location",
}
_PREFIXES = ("spark.", "fs.", "option.", "asyncprogresstracking")


@dataclass(frozen=True)
class Options:
    root: str
    destination: str
    subscription: str | None
    selector: str | None
    columns: tuple[str, ...]
    view: str
    fail_on_data_loss: bool
    starting_position: str | None
    max_messages: int | None
    max_bytes: int | None
    min_messages: int
    max_delay_ms: int
    in_doubt_timeout_ms: int | None
    txn_app_id: str | None
    txn_version: int | None


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises OptionError naming the option, its value and what is accepted."""
    known = {name.lower(): name for name in ACCEPTED}
    values: dict[str, str] = {}
    for key, value in given.items():
        if key.lower() == "asyncprogresstrackingenabled" and value.lower() == "true":
            raise TriggerError(
                f"{key} writes a query's progress after the next batch was asked for, which is the signal to acknowledge: "
                "leave it out"
            )
        if key.lower() in known:
            values[known[key.lower()]] = value
        elif key.lower() not in _FROM_SPARK and not key.lower().startswith(_PREFIXES):
            raise OptionError(f'format("jmsq") has no option {key!r}: accepted are {", ".join(ACCEPTED)}')
    return Options(
        root=_required(values, "root", os.environ.get("JMSQ_ROOT")),
        destination=_required(values, "destination", None),
        subscription=values.get("subscription") or None,
        selector=values.get("selector") or None,
        columns=_columns(values.get("columns")),
        view=_one_of(values, "view", VIEWS),
        fail_on_data_loss=_boolean(values, "failOnDataLoss", True),
        starting_position=values.get("startingPosition"),
        max_messages=_number(values, "maxMessagesPerTrigger", 1),
        max_bytes=_number(values, "maxBytesPerTrigger", 1),
        min_messages=_number(values, "minMessagesPerTrigger", 1) or 1,
        max_delay_ms=_duration(values, "maxTriggerDelay", 900_000) or 0,
        in_doubt_timeout_ms=_duration(values, "inDoubtTimeout", None),
        txn_app_id=values.get("txnAppId") or None,
        txn_version=_number(values, "txnVersion", 0),
    )


def _required(values: Mapping[str, str], name: str, otherwise: str | None) -> str:
    value = values.get(name) or otherwise
    if not value:
        hint = " (or the environment variable JMSQ_ROOT)" if name == "root" else ""
        raise OptionError(f'format("jmsq") needs option("{name}", …){hint}')
    return value


def _columns(text: str | None) -> tuple[str, ...]:
    from spark_jms.core.message import COLUMNS

    if text is None:
        return tuple(COLUMNS)
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    exact = {name.lower(): name for name in COLUMNS}
    unknown = [name for name in names if name.lower() not in exact]
    if unknown or not names or len(set(map(str.lower, names))) < len(names):
        raise OptionError(
            f"option columns is {text!r}, but must be a list of different message columns out of: {', '.join(COLUMNS)}"
        )
    return tuple(exact[name.lower()] for name in names)


def _number(values: Mapping[str, str], name: str, low: int) -> int | None:
    if name not in values:
        return None
    try:
        number = int(values[name])
    except ValueError:
        number = low - 1
    if number < low or number >= 2**63:
        raise OptionError(f"option {name} is {values[name]!r}, but must be a whole number of {low} or more")
    return number


def _duration(values: Mapping[str, str], name: str, default: int | None) -> int | None:
    if name not in values:
        return default
    try:
        return parse_duration_ms(values[name])
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from error


def _boolean(values: Mapping[str, str], name: str, default: bool) -> bool:
    text = values.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise OptionError(f"option {name} is {values[name]!r}, but must be true or false")
    return text == "true"


def _one_of(values: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    text = values.get(name, allowed[0]).lower()
    if text not in allowed:
        raise OptionError(f"option {name} is {values[name]!r}, but must be one of {', '.join(allowed)}")
    return text
