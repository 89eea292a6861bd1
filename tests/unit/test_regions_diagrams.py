"""The state tables of the replicated store's core, as docs/REPLICATED-STORE.md shows them (R4, R9, R10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.store.regions import diagrams
from spark_jms.store.regions.core.directory import Event
from spark_jms.store.regions.core.primary import State

PAGE = Path(__file__).parents[2] / "docs/REPLICATED-STORE.md"


def table(name: str) -> diagrams.Rows:
    return diagrams.rows_of(next(table for table in diagrams.TABLES if table.name == name))


def test_the_page_shows_what_the_tables_say() -> None:
    """R10: drawn anew, the page is the same. Else: python -m spark_jms.store.regions.diagrams --write docs/REPLICATED-STORE.md"""
    text = PAGE.read_text(encoding="utf-8")
    assert diagrams.put_into(text) == text


def test_the_tables_name_every_event_and_state_of_the_code() -> None:
    """R9, R10: of the directory's entries and of followers; nothing else."""
    assert [row[0] for row in table("directory")[1:]] == [event.name for event in Event]
    follower = table("primary")[1:]
    assert {cell for row in follower for cell in (row[0], row[2])} - {"-", "any"} == {state.name for state in State}


def test_a_region_moves_as_the_rules_allow() -> None:
    """R9, R10: the directory's diagram is what the rules do, not what somebody drew."""
    drawn = diagrams.directory(table("directory"))
    assert "open_two_copies --> closed_one_copy: PROMOTED" in drawn
    assert "closed_one_copy --> open_one_copy: OPENED" in drawn
    assert not [
        line for line in drawn.splitlines() if "one_copy --> " in line and ("PROMOTED" in line or "DROPPED" in line)
    ]
    assert not [line for line in drawn.splitlines() if line.strip().startswith("open") and "MOVED" in line]


def test_cells_run_over_and_go_on() -> None:
    text = "Theory.\n\n    what  who      then\n    a     nobody   b\n    c     a very long one\n          and more x\n\nafter\n"
    assert diagrams.table_of(text, "what ") == [
        ["what", "who", "then"],
        ["a", "nobody", "b"],
        ["c", "a very long one and more", "x"],
    ]
    with pytest.raises(ValueError, match="no table begins with"):
        diagrams.table_of(text, "nothing ")


def test_a_page_without_its_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="is missing"):
        diagrams.put_into("# A page\n")
