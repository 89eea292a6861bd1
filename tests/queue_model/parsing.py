"""Pure parsers that run once for the same bytes (C5). All processes of a model are in one: each would parse what the others have
written, and a new log all of it again. The results are immutable."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import TypeVar

import pytest

from spark_jms.claims import record_sets
from spark_jms.core.destination import Destination
from spark_jms.core.record_set_form import from_objects

V = TypeVar("V", bound=Hashable)
R = TypeVar("R")


def parse_once(patch: pytest.MonkeyPatch) -> None:
    """For one run, which shares no results with another one."""
    patch.setattr(record_sets, "from_objects", _once(from_objects))
    patch.setattr(Destination, "from_configuration", staticmethod(_once(Destination.from_configuration)))


def _once(parse: Callable[[dict[str, V], str], R]) -> Callable[[Mapping[str, V], str], R]:
    @lru_cache(1_000)
    def parsed(given: frozenset[tuple[str, V]], name: str) -> R:
        return parse(dict(given), name)

    return lambda given, name: parsed(frozenset(given.items()), name)
