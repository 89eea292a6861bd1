"""What the docs draw from the code: the state tables of the region cluster's core, and the map of the rooms.

python docs/diagrams.py                                           prints all
python docs/diagrams.py --write docs/REPLICATED-STORE-DESIGN.md   puts a page's pictures between their markers
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jms.store.regions.core.directory_view import REQUEST_STATES
from spark_jms.store.regions.core.leaving import LEAVING_STATES
from spark_jms.store.regions.core.opening import ANSWERS
from spark_jms.store.regions.core.primaries import NEW_REGION_STATES
from spark_jms.store.regions.core.primary import SECOND_PLACE_STATES
from spark_jms.store.regions.core.primary_state import PRIMARY_STATES, USE_STATES
from spark_jms.store.regions.core.replication import FOLLOWER_STATES
from spark_jms.store.regions.protocol import region_entry
from spark_jms.store.regions.protocol.region_entry import EntryEvent, Holder, RegionEntry
from spark_jms.store.state_table import StateTable

PROJECT = Path(__file__).parents[1]
Rows = list[tuple[str, ...]]
END_MARK = "<!-- end -->"
# From the top of the house to the ground: a floor imports from those below it.
FLOORS = (
    *("demo", "cli", "console", "metrics", "jobs", "admin", "aio", "client", "spark", "claims", "log", "core"),
    *("settings", "setup", "testing"),
)


def markdown(rows: Rows) -> str:
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *body))


# ---- state tables


def state_rows(table: StateTable[Any, Any]) -> Rows:
    rows: Rows = [("state", "event", "next", "effect")]
    for t in table.transitions:
        rows.append((_state(t.state, "-"), t.event.value, _state(t.next, "-"), t.effect))
    return rows


def state_diagram(table: StateTable[Any, Any]) -> str:
    arrows = [f"    {_state(t.state, '[*]')} --> {_state(t.next, '[*]')}: {t.event.value}" for t in table.transitions]
    return "\n".join(["stateDiagram-v2", *arrows])


def _state(state: Any, end: str) -> str:
    return end if state is None else str(state.name)


# ---- the entry of a region


def entry_rows() -> Rows:
    rows: Rows = [("event", "written by", "it", "needs", "primary", "secondary", "opener")]
    rows.append((EntryEvent.CREATED.name, "a daemon", "that daemon", "no entry", "it", "the next daemon, or -", "-"))
    for rule in region_entry.RULES.values():
        becomes = (rule.primary.value, rule.secondary.value, rule.opener.value)
        rows.append((rule.event.name, rule.writer, rule.subject, rule.needs, *becomes))
    needs = "the primary; any daemon once the primary has certainly ended"
    rows.append((EntryEvent.DELETED.name, needs, "", "closed or lost; damaged, and by force", "no entry", "", ""))
    return rows


def entry_diagram() -> str:
    """What the rules do when everything they allow is tried, from the creation on."""
    todo = [region_entry.created("r", "id", 1, _HERE, secondary, 0) for secondary in (None, _THERE)]
    known = {_kind(entry): entry for entry in todo}
    arrows = [f"    [*] --> {kind}: {EntryEvent.CREATED.name}" for kind in known]
    while todo:
        entry = todo.pop(0)
        for event, new in _changes(entry):
            arrows.append(f"    {_kind(entry)} --> {_kind(new)}: {event.name}")
            if _kind(new) not in known:
                known[_kind(new)] = new
                todo.append(new)
    arrows += [f"    {kind} --> [*]: {EntryEvent.DELETED.name}" for kind in known]
    names = [f'    state "{kind.replace("_", ", ", 1).replace("_", " ")}" as {kind}' for kind in known]
    return "\n".join(["stateDiagram-v2", *names, *arrows])


_HERE, _THERE, _THIRD = Holder(0, "a"), Holder(1, "b"), Holder(2, "c")


def _kind(entry: RegionEntry) -> str:
    if entry.is_destroyed:
        return "lost"
    return f"{'closed' if entry.opener is None else 'open'}_{'one_copy' if entry.secondary is None else 'two_copies'}"


def _changes(entry: RegionEntry) -> Iterator[tuple[EntryEvent, RegionEntry]]:
    subjects = {EntryEvent.OPENED: "client", EntryEvent.PROMOTED: entry.secondary}
    for event in region_entry.RULES:
        try:
            yield event, region_entry.change(event, entry, subjects.get(event, _THIRD))
        except ValueError:
            continue  # the rules forbid it here


# ---- the situations of a request to open


def opening_rows() -> Rows:
    return [("situation", "answer"), *((situation.value, answer) for situation, answer in ANSWERS.items())]


# ---- the rooms, by the first sentences of their docstrings


def rooms() -> list[Path]:
    """The packages, the floors in their order."""
    found = [PROJECT / "spark_jms" / floor for floor in FLOORS]
    return [
        package.parent
        for root in (*found, PROJECT / "store")
        for package in sorted(root.rglob("__init__.py"), key=lambda path: path.parent)
    ]


def sentence_of(room: Path) -> str:
    """The first sentence of its docstring."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    first = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[^.]\.) ", first)[0].rstrip(".")


def room_rows() -> Rows:
    names = {room: room.relative_to(PROJECT).as_posix() for room in rooms()}
    shown = [(f"[`{name.removeprefix('spark_jms/')}/`](../{name})", sentence_of(room)) for room, name in names.items()]
    return [("Room", "What lives there"), *shown]


# ---- the pages


@dataclass(frozen=True)
class Picture:
    name: str
    rows: Callable[[], Rows]
    diagram: Callable[[], str] | None = None

    @property
    def begin_mark(self) -> str:
        return f"<!-- drawn from the code: {self.name} -->"

    def draw(self) -> str:
        parts = [self.begin_mark, markdown(self.rows())]
        if self.diagram is not None:
            parts += ["", "```mermaid", self.diagram(), "```"]
        return "\n".join([*parts, END_MARK])


def _of(name: str, table: StateTable[Any, Any]) -> Picture:
    return Picture(name, lambda: state_rows(table), lambda: state_diagram(table))


STATES = (
    Picture("directory", entry_rows, entry_diagram),
    _of("primary", PRIMARY_STATES),
    _of("follower", FOLLOWER_STATES),
    _of("requests", REQUEST_STATES),
    _of("new region", NEW_REGION_STATES),
    Picture("opening", opening_rows),
    _of("leaving", LEAVING_STATES),
    _of("second place", SECOND_PLACE_STATES),
    _of("use", USE_STATES),
)
PAGES = {"REPLICATED-STORE-DESIGN.md": STATES, "ARCHITECTURE.md": (Picture("rooms", room_rows),)}


def redrawn(page: Path) -> str:
    """The page with every table and diagram redrawn. ValueError when a marker is missing."""
    text = page.read_text(encoding="utf-8")
    for picture in PAGES[page.name]:
        start = text.find(picture.begin_mark)
        end = text.find(END_MARK, start)
        if start < 0 or end < 0:
            raise ValueError(f"{picture.begin_mark} … {END_MARK} is missing")
        text = f"{text[:start]}{picture.draw()}{text[end + len(END_MARK) :]}"
    return text


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments[:1] == ["--write"] and len(arguments) == 2 and Path(arguments[1]).name in PAGES:
        page = Path(arguments[1])
        page.write_text(redrawn(page), encoding="utf-8")
        return 0
    if arguments:
        print("Usage: python docs/diagrams.py [--write PAGE]", file=sys.stderr)
        return 2
    print("\n\n".join(picture.draw() for pictures in PAGES.values() for picture in pictures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
