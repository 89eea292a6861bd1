"""What a daemon takes from its environment beside the options of the text (R3).

RS_HEARTBEAT_MS, RS_FAILURE_TIMEOUT_MS, RS_CLIENT_TIMEOUT_MS, RS_OPEN_TIMEOUT_MS    milliseconds
RS_RESILVER_MB_PER_S            how fast copies are made while service goes on
RS_SINGLE_COPY                  allow | refuse writes while a region has one copy
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from spark_jms.store.errors import SettingInvalidError
from spark_jms.store.regions.core.daemon import DaemonSettings

MILLISECONDS = {
    "RS_HEARTBEAT_MS": ("heartbeat_ms", 10, 60_000),
    "RS_FAILURE_TIMEOUT_MS": ("failure_timeout_ms", 100, 600_000),
    "RS_CLIENT_TIMEOUT_MS": ("client_timeout_ms", 1_000, 600_000),
    "RS_OPEN_TIMEOUT_MS": ("open_timeout_ms", 100, 3_600_000),
}


def from_environment(environment: Mapping[str, str]) -> DaemonSettings:
    """SettingInvalidError names the variable, its value and what is allowed."""
    settings = DaemonSettings()
    for name, (field, low, high) in MILLISECONDS.items():
        if name in environment:
            value: Any = float(integer(name, environment[name], low, high))
            settings = replace(settings, **{field: value})
    if settings.heartbeat_ms * 2 > settings.failure_timeout_ms:
        raise SettingInvalidError(
            "RS_FAILURE_TIMEOUT_MS", f"{settings.failure_timeout_ms:g}", "at least twice RS_HEARTBEAT_MS"
        )
    if "RS_RESILVER_MB_PER_S" in environment:
        rate = integer("RS_RESILVER_MB_PER_S", environment["RS_RESILVER_MB_PER_S"], 1, 100_000)
        settings = replace(settings, resilver_bytes_per_s=rate << 20)
    policy = environment.get("RS_SINGLE_COPY", settings.single_copy)
    if policy not in ("allow", "refuse"):
        raise SettingInvalidError("RS_SINGLE_COPY", policy, "allow or refuse")
    return replace(settings, single_copy=policy)


def integer(name: str, value: str, low: int, high: int) -> int:
    if not value.isdecimal() or not low <= int(value) <= high:
        raise SettingInvalidError(name, value, f"allowed are {low} to {high}")
    return int(value)
