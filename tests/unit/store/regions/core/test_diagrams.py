"""The state tables of the region cluster's core: they execute, and docs/REPLICATED-STORE-DESIGN.md shows them (R4, R9, R10)."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from spark_jms.store.regions.core.directory_view import REQUEST_STATES, RequestEvent, RequestState
from spark_jms.store.regions.core.leaving import LEAVING_STATES, LeavingEvent, LeavingState
from spark_jms.store.regions.core.opening import ANSWERS, Situation
from spark_jms.store.regions.core.primaries import NEW_REGION_STATES, NewRegionEvent, NewRegionState
from spark_jms.store.regions.core.primary import SECOND_PLACE_STATES, SecondPlaceEvent, SecondPlaceState
from spark_jms.store.regions.core.primary_state import (
    PRIMARY_STATES,
    USE_STATES,
    PrimaryEvent,
    PrimaryState,
    UseEvent,
    UseState,
)
from spark_jms.store.regions.core.replication import FOLLOWER_STATES, FollowerEvent, FollowerState
from spark_jms.store.regions.protocol.region_entry import EntryEvent
from spark_jms.store.state_table import StateTable, StateTransition
from tests.harness.project import PROJECT, tool_of_docs

diagrams = tool_of_docs("diagrams")
PAGE = PROJECT / "docs/REPLICATED-STORE-DESIGN.md"
MACHINES = [
    (FOLLOWER_STATES, FollowerState, FollowerEvent),
    (PRIMARY_STATES, PrimaryState, PrimaryEvent),
    (NEW_REGION_STATES, NewRegionState, NewRegionEvent),
    (REQUEST_STATES, RequestState, RequestEvent),
    (LEAVING_STATES, LeavingState, LeavingEvent),
    (SECOND_PLACE_STATES, SecondPlaceState, SecondPlaceEvent),
    (USE_STATES, UseState, UseEvent),
]


def test_the_page_shows_the_tables_of_the_code() -> None:
    """R10: redrawn, the page is the same. Else: python docs/diagrams.py --write docs/REPLICATED-STORE-DESIGN.md"""
    assert diagrams.redrawn(PAGE) == PAGE.read_text(encoding="utf-8")


def test_the_tables_name_every_event_and_state_of_the_code() -> None:
    """R9, R10: of the directory's entries, of followers and primaries, and of requests to open; nothing else."""
    assert [row[0] for row in diagrams.entry_rows()[1:]] == [event.name for event in EntryEvent]
    assert list(ANSWERS) == list(Situation)
    for table, states, events in MACHINES:
        assert {state for t in table.transitions for state in (t.state, t.next)} - {None} == set(states)
        assert {t.event for t in table.transitions} == set(events)


@pytest.mark.parametrize(
    ("table", "states", "events"),
    MACHINES,
    ids=["follower", "primary", "new region", "requests", "leaving", "second place", "use"],
)
def test_a_transition_that_is_not_in_the_table_cannot_happen(
    table: StateTable[Any, Any], states: Any, events: Any
) -> None:
    """R9, R10: every state with every event."""
    allowed = {(t.state, t.event): t.next for t in table.transitions}
    for state, event in product([None, *states], events):
        if (state, event) in allowed:
            assert table.next(state, event) is allowed[state, event]
        else:
            with pytest.raises(RuntimeError, match="cannot happen"):
                table.next(state, event)


def test_a_state_has_one_transition_for_an_event() -> None:
    twice = [StateTransition(None, FollowerEvent.WANTED, state, "") for state in FollowerState]
    with pytest.raises(ValueError, match="two transitions"):
        StateTable(*twice)


def test_a_region_changes_only_as_the_rules_allow() -> None:
    """R9, R10: the directory's diagram shows what the rules do."""
    drawn = diagrams.entry_diagram()
    assert "open_two_copies --> closed_one_copy: PROMOTED" in drawn
    assert "closed_one_copy --> open_one_copy: OPENED" in drawn
    assert not [
        line for line in drawn.splitlines() if "one_copy --> " in line and ("PROMOTED" in line or "DROPPED" in line)
    ]
    assert not [line for line in drawn.splitlines() if line.strip().startswith("open") and "MOVED" in line]


def test_a_page_without_its_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / PAGE.name
    page.write_text("# A page\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is missing"):
        diagrams.redrawn(page)
