"""State tables that execute. Pure: a transition that a table does not have cannot happen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True)
class StateTransition(Generic[S, E]):
    state: S | None  # None: before the first state
    event: E
    next: S | None  # None: after the last state
    effect: str  # in words, for the documentation


class StateTable(Generic[S, E]):
    def __init__(self, *transitions: StateTransition[S, E]) -> None:
        self.transitions = transitions
        self._next = {(t.state, t.event): t.next for t in transitions}
        if len(self._next) != len(transitions):
            raise ValueError("a state has two transitions for one event")

    def next(self, state: S | None, event: E) -> S | None:
        try:
            return self._next[state, event]
        except KeyError:
            raise RuntimeError(f"{event} cannot happen in {state}") from None
