"""Looking up a step in a state table. A step that the table does not have is refused by name, and changes nothing.

Features: T16 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from spark_jms.errors import IllegalStateException

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)
T = TypeVar("T")


def step_of(table: Mapping[tuple[State, Event], T], state: State, event: Event, what: str) -> T:
    """`what` names the thing that has the state. Raises IllegalStateException."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalStateException(
            f"{what} is {state.name}, and {event.name} is no step of that state: nothing was changed"
        ) from None
