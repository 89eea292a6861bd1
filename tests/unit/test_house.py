"""House rules that a machine can judge (docs/STYLE.md): import circles, class names, formatting."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
ROOTS = ("spark_jms", "store", "tests/simulator", "benchmarks")


@lru_cache
def modules() -> dict[str, Path]:
    """Module name -> file, of everything that is imported; store/ is imported as spark_jms.store."""
    found = {}
    for root in ROOTS:
        for path in sorted((PROJECT / root).rglob("*.py")):
            if "spark_jms/store/" in path.as_posix():
                continue  # the link; the files are found under store/
            parts = path.relative_to(PROJECT).with_suffix("").parts
            name = ".".join(("spark_jms", *parts) if parts[0] == "store" else parts)
            found[name.removesuffix(".__init__")] = path
    return found


@lru_cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(name: str) -> set[str]:
    """Modules of ours that this one imports anywhere: at run time, for types only, inside a function."""
    known, found = modules(), set()
    for node in ast.walk(tree_of(known[name])):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {target for target in found if target in known and target != name}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that reach each other (strongly connected components with more than one member)."""
    reached: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        todo = list(graph[start])
        while todo:
            current = todo.pop()
            if current not in seen:
                seen.add(current)
                todo += graph[current]
        reached[start] = seen
    groups = {frozenset(b for b in reached[a] if a in reached[b]) for a in graph if a in reached[a]}
    return sorted(sorted(group) for group in groups)


def test_no_import_circles() -> None:
    """A package's __init__ only hands names on; it is a surface, not a part, so it does not close a circle."""
    surfaces = {name for name, path in modules().items() if path.name == "__init__.py"}
    graph = {name: imports_of(name) - surfaces for name in modules() if name not in surfaces}
    assert circles(graph) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_feature_ids_stand_in_the_last_line_of_a_module_docstring_alone() -> None:
    """A reader of the product meets sentences, not codes."""
    features = re.compile(r"Features: [CRSDTM]\d+(, [CRSDTM]\d+)* \(docs/FEATURES\.md\)")
    ids = re.compile(r"(?<![\w./-])[CRSDTM]\d{1,2}(?![\w'-])")
    wrong = []
    for name, path in modules().items():
        if not name.startswith("spark_jms"):
            continue  # tests name what they prove
        text = path.read_text(encoding="utf-8")
        last = (ast.get_docstring(ast.parse(text)) or "").rpartition("\n")[2]
        rest = text.replace(f"\n{last}\n", "\n", 1) if features.fullmatch(last) else text
        wrong += [f"{name}: {line.strip()}" for line in rest.splitlines() if ids.search(line)]
    assert wrong == []


def test_a_class_name_has_one_meaning() -> None:
    """Public classes of the whole repository, nested ones included."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in modules().items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def python_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this tree is not a git checkout")
    return [PROJECT / line for line in listed.stdout.splitlines()]


def test_no_formatting_is_switched_off() -> None:
    switch = "fmt: " + "skip"
    assert [
        str(path.relative_to(PROJECT)) for path in python_files() if path.exists() and switch in path.read_text()
    ] == []


def test_make_test_looks_for_tests_with_spark_in_every_folder_that_has_some() -> None:
    """Its stage with Spark does not import the tests of the other folders."""
    (named,) = re.findall(r"^SPARK_TESTS := (.+)$", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    marker = "mark." + "spark"
    marked = [path for path in (PROJECT / "tests").rglob("test_*.py") if marker in path.read_text("utf-8")]
    folders = {"tests/spark", *(f"tests/{path.relative_to(PROJECT / 'tests').parts[0]}" for path in marked)}
    assert folders == set(named.split())
