"""The map of the rooms and the page of features are those of the tree."""

from __future__ import annotations

from tests.harness.project import PROJECT, tool_of_docs

diagrams = tool_of_docs("diagrams")
PAGE = PROJECT / "docs/ARCHITECTURE.md"
FEATURES = PROJECT / "docs/ROOMS.md"


def test_the_map_shows_each_room_by_the_first_sentence_of_its_docstring() -> None:
    """Else: python docs/diagrams.py --write docs/ARCHITECTURE.md"""
    assert diagrams.redrawn(PAGE) == PAGE.read_text(encoding="utf-8")
    assert [room for room in diagrams.rooms() if not diagrams.sentence_of(room)] == []


def test_the_map_has_every_room() -> None:
    found = {path.parent for root in ("spark_jms", "store") for path in (PROJECT / root).rglob("*.py")}
    link = PROJECT / "spark_jms/store"
    expected = {room for room in found if not room.is_relative_to(link)} - {PROJECT / "spark_jms"}
    assert set(diagrams.rooms()) == expected


def test_each_module_that_a_feature_names_exists() -> None:
    """A cell names modules of its column's floor; where a column has several floors, the cell names the floor too."""
    page = FEATURES.read_text(encoding="utf-8").partition("## A feature is a column")[2]
    head, *rows = [line for line in page.splitlines() if line.startswith("| ")]
    floors = [cell.strip() for cell in head.strip("|").split("|")][1:]
    assert floors[:4] == ["settings", "core", "log", "claims"]
    missing = []
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if len(cells) != len(floors) + 1:
            break  # the next table
        for floor, cell in zip(floors, cells[1:], strict=True):
            for name in filter(None, cell.split(", ")):
                module = PROJECT / "spark_jms" / ("" if ", " in floor else floor) / f"{name}.py"
                if not module.is_file():
                    missing.append(f"{cells[0]}: {module.relative_to(PROJECT)}")
    assert missing == []
