"""Durations as arguments of the client.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from spark_jms.errors import OptionError
from spark_jms.settings.duration import DurationLike, duration_s


def seconds_of(name: str, given: DurationLike) -> float:
    """The seconds of the argument `name`. Raises OptionError."""
    try:
        return duration_s(given)
    except ValueError as error:
        raise OptionError(f"{name}: {error}") from None
