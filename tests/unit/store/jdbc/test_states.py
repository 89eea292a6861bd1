"""The tables of roles and engine states (S3 to S8): complete, executed, and shown in docs/DATA-STORES as they are."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from enum import Enum
from typing import Any

import pytest

from spark_jms.settings.store import FAILOVER, RETRY
from spark_jms.store.jdbc.protocol import (
    CONNECTION_LOSS,
    ENGINE_STATES,
    ROLES,
    EngineEvent,
    EngineState,
    ProcessRole,
    RoleEvent,
    StateMachine,
    draw_states,
)
from tests.harness.project import PROJECT

Table = Mapping[tuple[Any, Any], Any]
TABLES = pytest.mark.parametrize(
    ("table", "states", "events"), [(ROLES, ProcessRole, RoleEvent), (ENGINE_STATES, EngineState, EngineEvent)]
)


@TABLES
def test_every_state_is_entered_and_every_event_occurs(table: Table, states: type[Enum], events: type[Enum]) -> None:
    """S6: no state or event stands in the table for show."""
    first = next(iter(states))
    assert {after for (before, _), after in table.items() if before is not after} | {first} == set(states)
    assert {event for _, event in table} == set(events)


@TABLES
def test_events_outside_the_table_are_refused(table: Table, states: type[Enum], events: type[Enum]) -> None:
    """S6: an event that the table does not list raises, and the state stays as it is."""
    for state, event in itertools.product(states, events):
        machine = StateMachine(table, state)
        if (state, event) in table:
            entered = machine.step(event)
            assert machine.state is table[state, event]
            assert entered is (machine.state if machine.state is not state else None)
        else:
            with pytest.raises(RuntimeError, match=event.value):
                machine.step(event)
            assert machine.state is state


def test_connection_loss_disables_or_retries() -> None:
    """S6: both behaviours of `on_connection_loss`, and no way back from DISABLED."""
    for setting, expected in ((FAILOVER, EngineState.DISABLED), (RETRY, EngineState.REGAINING)):
        machine: StateMachine[EngineState, EngineEvent] = StateMachine(ENGINE_STATES, EngineState.SERVING)
        machine.step(CONNECTION_LOSS[setting])
        assert machine.state is expected
    assert {after for (before, _), after in ENGINE_STATES.items() if before is EngineState.DISABLED} == {
        EngineState.DISABLED
    }


def test_the_page_shows_the_tables() -> None:
    """S3, S6: drawn from the data that the code looks up."""
    page = (PROJECT / "docs" / "DATA-STORES.md").read_text(encoding="utf-8")
    assert draw_states(ROLES) in page
    assert draw_states(ENGINE_STATES) in page
