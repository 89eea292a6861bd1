"""The house: its modules, its rooms, and the limits that `make lint` holds.

python -m tests.harness.house            prints the figures, and what misses a limit
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path

from tests.harness.project import PROJECT

PRODUCT = ("spark_jms", "store")
MOST_LINES, LEAST_MEDIAN = 600, 200
MOST_MODULES, FEWEST_MODULES = 15, 3
# A reason beats a limit, and stands here: folder -> reason.
THIN = {
    "spark_jms": "the errors, the module file, and the way into store/; everything else is in a room",
}
FULL: Mapping[str, str] = {}
LONG: Mapping[str, str] = {}


@lru_cache
def modules(*roots: str) -> dict[str, Path]:
    """Module name -> file. `store/` is imported as spark_jms.store."""
    found = {}
    for root in roots or PRODUCT:
        for path in sorted((PROJECT / root).rglob("*.py")):
            if path.is_relative_to(PROJECT / "spark_jms/store"):
                continue  # the link that set-up makes; the files are found under store/
            parts = path.relative_to(PROJECT).with_suffix("").parts
            name = ".".join(("spark_jms", *parts) if parts[0] == "store" else parts)
            found[name.removesuffix(".__init__")] = path
    return found


@lru_cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(name: str, known: Mapping[str, Path]) -> set[str]:
    """The known modules that this one imports anywhere: at run time, for types only, inside a function."""
    found = set()
    for node in ast.walk(tree_of(known[name])):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {target for target in found if target in known and target != name}


def graph_of(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Without the packages' `__init__`, which hand names on: they are surfaces, not parts."""
    surfaces = {name for name, path in known.items() if path.name == "__init__.py"}
    return {name: imports_of(name, known) - surfaces for name in known if name not in surfaces}


def room_of(path: Path) -> str:
    """Its folder; a module beside the floors is a room of its own."""
    inside = path.relative_to(PROJECT)
    return str(inside if str(inside.parent) in PRODUCT else inside.parent)


def rooms_of(graph: Mapping[str, set[str]], known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which room imports which."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        found[room_of(known[name])] |= {room_of(known[target]) for target in targets}
    return {room: targets - {room} for room, targets in found.items()}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups that reach each other (strongly connected components with more than one member)."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            current = todo.pop()
            if current not in seen:
                seen.add(current)
                todo += graph.get(current, ())
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in graph if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def missed(lines: Mapping[str, int], folders: Mapping[str, int], found: Iterable[list[str]]) -> list[str]:
    """One text a limit that is not kept. `lines` of each file, `folders` with their number of modules, the circles."""
    texts = [
        f"{file} has {n} lines, at most {MOST_LINES}"
        for file, n in lines.items()
        if n > MOST_LINES and file not in LONG
    ]
    median = statistics.median(lines.values())
    if median < LEAST_MEDIAN:
        texts.append(f"the median module has {median:.0f} lines, at least {LEAST_MEDIAN}")
    for folder, n in folders.items():
        if n > MOST_MODULES and folder not in FULL:
            texts.append(f"{folder}/ has {n} modules, at most {MOST_MODULES}")
        if n < FEWEST_MODULES and folder not in THIN:
            texts.append(f"{folder}/ has {n} modules, at least {FEWEST_MODULES}")
    return texts + [f"a circle: {', '.join(group)}" for group in found]


def main() -> int:
    known = modules()
    files = {str(p.relative_to(PROJECT)): p for p in known.values() if p.name != "__init__.py"}
    lines = {file: path.read_text(encoding="utf-8").count("\n") for file, path in files.items()}
    folders = Counter(str(Path(file).parent) for file in files)
    graph = graph_of(known)
    texts = missed(lines, folders, [*circles(graph), *circles(rooms_of(graph, known))])
    longest = max(lines, key=lines.__getitem__)
    print(
        f"{len(lines)} modules in {len(folders)} rooms, {sum(lines.values())} lines: median "
        f"{statistics.median(lines.values()):.0f}, longest {lines[longest]} ({longest})"
    )
    for text in texts:
        print(text, file=sys.stderr)
    return bool(texts)


if __name__ == "__main__":
    sys.exit(main())
