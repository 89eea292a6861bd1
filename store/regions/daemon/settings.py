"""A daemon's settings from its environment. They are declared in `spark_jms/settings/store.py`.

Features: R3, R10 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping

from spark_jms.settings.store import DaemonSettings, from_variables
from spark_jms.store.errors import SettingInvalidError


def from_environment(environment: Mapping[str, str]) -> DaemonSettings:
    """SettingInvalidError names the variable, its value and what is allowed."""
    settings: DaemonSettings = from_variables(DaemonSettings, environment)
    if settings.heartbeat_ms * 2 > settings.failure_timeout_ms:
        raise SettingInvalidError(
            "RS_FAILURE_TIMEOUT_MS", f"{settings.failure_timeout_ms:g}", "it must be at least twice RS_HEARTBEAT_MS"
        )
    return settings


def timeouts_of(settings: DaemonSettings) -> str:
    """What all daemons of a cluster must have in common. A primary's lease ends before its secondary may take over only if
    both count the same time."""
    return f"RS_HEARTBEAT_MS={settings.heartbeat_ms:g}, RS_FAILURE_TIMEOUT_MS={settings.failure_timeout_ms:g}"
