"""The state tables of the core as they stand in its modules, drawn for docs/REPLICATED-STORE.md.

python -m spark_jms.store.regions.diagrams            prints them
python -m spark_jms.store.regions.diagrams --write docs/REPLICATED-STORE.md     puts them between their markers

A table is the block of lines of a module's docstring that begins with the given words. Its columns begin where those of its
first line do; a cell that runs over the next column's beginning takes that column too.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_jms.store.regions.core import directory as rules
from spark_jms.store.regions.core.directory import Event, Holder, RegionEntry

Rows = list[list[str]]
CORE = "spark_jms.store.regions.core"


@dataclass(frozen=True)
class Drawn:
    """One table: where it stands, how its first line begins, its columns ("" = as its first line says), how it is drawn."""

    name: str
    module: str
    begins: str
    columns: tuple[str, ...]
    draw: Callable[[Rows], str]


def table_of(docstring: str, begins: str, columns: Sequence[str] = ()) -> Rows:
    """The heads and then the rows. ValueError when there is no such table."""
    lines = docstring.splitlines()
    start = next((n for n, line in enumerate(lines) if line.strip().startswith(begins)), None)
    if start is None:
        raise ValueError(f"no table begins with {begins!r}")
    block = []
    for line in lines[start:]:
        if not line.strip():
            break
        block.append(line)
    edges = [found.start() for found in re.finditer(r"\S+(?: \S+)*", block[0])]  # two blanks part columns
    rows: Rows = [list(columns)] if columns else []
    for line in block:
        cells = _cells(line, edges)
        if rows and len(rows) > 1 and not cells[0]:
            rows[-1] = [f"{old} {more}".strip() for old, more in zip(rows[-1], cells, strict=True)]
        else:
            rows.append(cells)
    return rows


def _cells(line: str, edges: Sequence[int]) -> list[str]:
    cells = [""] * len(edges)
    start = edges[0]
    column = 0
    for number, edge in enumerate([*edges[1:], len(line) + 1], 1):
        runs_over = number < len(edges) and edge < len(line) and line[edge - 1] != " "
        runs_over = runs_over or (number < len(edges) and line[edge : edge + 1] == " " and line[edge:].strip() != "")
        if runs_over and line[start:edge].strip():
            continue
        cells[column] = line[start:edge].strip()
        column, start = number, edge
    return cells


# ---- as Markdown and as Mermaid


def markdown(rows: Rows) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def _words(text: str) -> str:
    """Mermaid ends a label at ; and : and takes quotes for its own."""
    return text.translate({ord(c): "," for c in ":;"} | {ord(c): None for c in '"#'}).strip()


def machine(rows: Rows) -> str:
    """state, event, next: "-" is before or after all, "any" is each of them."""
    states = list(dict.fromkeys(cell for row in rows[1:] for cell in (row[0], row[2]) if cell not in ("-", "any")))
    lines = ["stateDiagram-v2", *(f'    state "{state}" as {state}' for state in states)]
    for state, event, then, *_ in rows[1:]:
        for one in states if state == "any" else [state]:
            lines.append(f"    {_end(one)} --> {_end(then)}: {_words(event)}")
    return "\n".join(lines)


def _end(state: str) -> str:
    return "[*]" if state == "-" else state


def decision(rows: Rows) -> str:
    """The first column asks, the last one answers."""
    lines = ["flowchart LR", f'    look{{"{_words(rows[0][0])}"}}']
    for number, row in enumerate(rows[1:]):
        lines.append(f'    look -- "{_words(row[0])}" --> r{number}["{_words(row[-1])}"]')
    return "\n".join(lines)


def steps(rows: Rows) -> str:
    """Step, what is looked at or done, and how it ends; the refusing ones come first."""
    lines = ["flowchart TD"]
    for number, (name, what, ends) in enumerate(rows[1:]):
        lines.append(f'    s{number}["{_words(name)}, {_words(what)}"]')
        if "refused" in ends:
            lines.append(f'    s{number} -- "yes" --> refused["{_words(ends)}"]')
            lines.append(f'    s{number} -- "no" --> s{number + 1}')
        elif number + 2 < len(rows):
            lines.append(f'    s{number} -- "{_words(ends)}" --> s{number + 1}')
    return "\n".join(lines)


def directory(rows: Rows) -> str:
    """A region's entry, found by doing everything the rules allow, from its creation on; `rows` only name the events."""
    told = {row[0]: row[1] for row in rows[1:]}
    begun = {_kind(entry): entry for entry in _created()}
    lines = ["stateDiagram-v2"]
    moves: list[str] = [f"    [*] --> {kind}: {Event.CREATED.name}" for kind in begun]
    todo, known = list(begun.values()), dict(begun)
    while todo:
        entry = todo.pop(0)
        for event, new in _events(entry):
            if event.name not in told:
                raise ValueError(f"the table has no {event.name}")
            moves.append(f"    {_kind(entry)} --> {_kind(new)}: {event.name}")
            if _kind(new) not in known:
                known[_kind(new)] = new
                todo.append(new)
    moves += [f"    {kind} --> [*]: {Event.DELETED.name}" for kind in known]
    lines += [f'    state "{kind.replace("_", ", ", 1).replace("_", " ")}" as {kind}' for kind in known]
    return "\n".join([*lines, *dict.fromkeys(moves)])


_HERE, _THERE, _THIRD = Holder(0, "a"), Holder(1, "b"), Holder(2, "c")


def _created() -> Iterator[RegionEntry]:
    for secondary in (None, _THERE):
        yield rules.created("r", "id", 1, _HERE, secondary, None, 0)


def _kind(entry: RegionEntry) -> str:
    return f"{'closed' if entry.opener is None else 'open'}_{'one_copy' if entry.secondary is None else 'two_copies'}"


def _events(entry: RegionEntry) -> Iterator[tuple[Event, RegionEntry]]:
    tries: list[tuple[Event, Callable[[], RegionEntry]]] = [
        (Event.OPENED, lambda: rules.opened(entry, "client")),
        (Event.PROMOTED, lambda: rules.promoted(entry, entry.secondary or _THIRD)),
        (Event.DROPPED, lambda: rules.dropped(entry)),
        (Event.JOINED, lambda: rules.joined(entry, _THIRD)),
        (Event.MOVED, lambda: rules.moved(entry, _THIRD)),
        (Event.RENOUNCED, lambda: rules.renounced(entry, Holder(9, "x"))),
        (Event.RENEWED, lambda: rules.renewed(entry)),
    ]
    if entry.opener is not None:
        tries.append((Event.CLOSED, lambda: rules.closed(entry)))
    for event, attempt in tries:
        try:
            new = attempt()
        except ValueError:
            continue  # the rules forbid it here
        yield event, new


TABLES = (
    Drawn("directory", f"{CORE}.directory", "event ", (), directory),
    Drawn("primary", f"{CORE}.primary", "follower ", (), machine),
    Drawn("replica", f"{CORE}.replica", "event ", (), decision),
    Drawn("opening", f"{CORE}.opening", "the directory says", (), decision),
    Drawn("shutdown", f"{CORE}.shutdown", "step 1", ("step", "what is looked at or done", "how it ends"), steps),
)


def rows_of(drawn: Drawn) -> Rows:
    return table_of(importlib.import_module(drawn.module).__doc__ or "", drawn.begins, drawn.columns)


def drawn(table: Drawn) -> str:
    rows = rows_of(table)
    return f"{markdown(rows)}\n\n```mermaid\n{table.draw(rows)}\n```"


def begin_mark(name: str) -> str:
    return f"<!-- drawn from the code: {name} -->"


END_MARK = "<!-- end -->"


def put_into(text: str) -> str:
    """The page with every table and diagram drawn anew. ValueError when a marker is missing."""
    for table in TABLES:
        start = text.find(begin_mark(table.name))
        end = text.find(END_MARK, start)
        if start < 0 or end < 0:
            raise ValueError(f"{begin_mark(table.name)} … {END_MARK} is missing")
        text = f"{text[:start]}{begin_mark(table.name)}\n{drawn(table)}\n{text[end:]}"
    return text


def main(words: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if words is None else words)
    if arguments[:1] == ["--write"] and len(arguments) == 2:
        page = Path(arguments[1])
        page.write_text(put_into(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    if arguments:
        print("Usage: python -m spark_jms.store.regions.diagrams [--write PAGE]", file=sys.stderr)
        return 2
    for table in TABLES:
        print(f"{begin_mark(table.name)}\n{drawn(table)}\n{END_MARK}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
