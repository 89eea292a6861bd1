"""The map of the rooms in docs/ARCHITECTURE.md, from the first sentence of each room's docstring.

python docs/rooms.py                                  prints it
python docs/rooms.py --write docs/ARCHITECTURE.md     puts it between its markers
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[1]
BEGIN, END = "<!-- rooms: python docs/rooms.py --write docs/ARCHITECTURE.md -->", "<!-- end -->"
# From the top of the house to the ground: a floor imports from those below it.
FLOORS = (
    *("demo", "cli", "console", "metrics", "jobs", "admin", "aio", "client", "spark", "claims", "log", "core"),
    *("settings", "setup", "testing"),
)


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


def table() -> str:
    """A line a room."""
    lines = ["| Room | What lives there |", "|---|---|"]
    for room in rooms():
        name = room.relative_to(PROJECT).as_posix()
        lines.append(f"| [`{name.removeprefix('spark_jms/')}/`](../{name}) | {sentence_of(room)} |")
    return "\n".join(lines)


def put_into(page: str) -> str:
    """The page with the table between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} or no {END} behind it")
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main(words: list[str]) -> int:
    if not words:
        print(table())
        return 0
    if len(words) == 2 and words[0] == "--write":
        page = Path(words[1])
        page.write_text(put_into(page.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    print("Usage: python docs/rooms.py [--write PAGE]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
