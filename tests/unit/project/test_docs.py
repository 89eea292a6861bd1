"""The documentation against the tree: links, commands, options, features, errors."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import pytest

from benchmarks.readme import figures
from tests.harness.project import PROJECT

DOCS = sorted([PROJECT / "README.md", *(PROJECT / "docs").glob("*.md")])
IDS = {
    f"{group}{n}"
    for group, last in {"C": 20, "R": 20, "S": 9, "D": 10, "T": 18, "M": 10}.items()
    for n in range(1, last + 1)
} | {"M12"}
STATES = {"done", "part", "not yet"}
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)", re.MULTILINE)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| ([CRSDTM]\d+) \|(.*)\|$", re.MULTILINE)
_HOME = re.compile(r"(?<![\w.])/(?:home|root|Users|work|tmp|var|usr)/")

each_page = pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)


@lru_cache
def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors."""
    headings = re.findall(r"^#+ (.*)$", _FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def code_of(page: Path) -> str:
    """What is shown as code: blocks that are not configuration or pictures, and spans."""
    text = text_of(page)
    blocks = [body for language, body in _FENCE.findall(text) if language in ("", "bash", "sh")]
    spans = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    return "\n".join([*blocks, *spans])


def rows() -> dict[str, list[str]]:
    found = _ROW.findall(text_of(PROJECT / "docs/FEATURES.md"))
    assert len(found) == len({name for name, _ in found}), "an id has two rows"
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in found}


@each_page
def test_links_resolve(page: Path) -> None:
    for inline, named in _LINK.findall(_FENCE.sub("", text_of(page))):
        link = inline or named
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / unquote(path)).resolve() if path else page
        assert target.exists(), f"{page.name}: {link} leads nowhere"
        assert PROJECT in (target, *target.parents), f"{page.name}: {link} leads out of the project"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{page.name}: {link}: there is no such heading"


@each_page
def test_named_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (PROJECT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"(?:^|[\s&])make ([a-z-]+)", code_of(page), re.MULTILINE))
    assert named <= targets


@each_page
def test_named_jmsq_commands_exist(page: Path) -> None:
    """C14, R3: commands, those of a group too, and their long options."""
    from click import Group

    from spark_jms.cli.__main__ import cli

    for line in code_of(page).splitlines():
        for name, rest in re.findall(r"(?:^|[|;(] ?)jmsq (?:--json )?([a-z][a-z-]*)([^#|;]*)", line):
            assert name in cli.commands, f"{page.name}: jmsq {name}"
            command = cli.commands[name]
            if isinstance(command, Group) and (word := re.match(r" ([a-z][a-z-]*)", rest)):
                assert word[1] in command.commands, f"{page.name}: jmsq {name} {word[1]}"
                command = command.commands[word[1]]
            accepted = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts)} | {"--help"}
            unknown = set(re.findall(r"(?<!\S)--[a-z-]+", rest)) - accepted
            assert not unknown, f"{page.name}: jmsq {name} has no {unknown}"


def test_operating_lists_the_commands_as_the_help_does() -> None:
    """C14"""
    from spark_jms.cli.__main__ import SECTIONS

    rows = re.findall(r"^\| \*\*(\w+)\*\* \| (.*) \|$", text_of(PROJECT / "docs/OPERATING.md"), re.MULTILINE)
    assert {title: re.findall(r"`([^`]+)`", names) for title, names in rows} == {
        title: [command.name for command in commands] for title, commands in SECTIONS.items()
    }


def test_readme_has_the_figures_of_the_benchmarks() -> None:
    readme, benchmarks = text_of(PROJECT / "README.md"), text_of(PROJECT / "docs/BENCHMARKS.md")
    assert figures(benchmarks) in readme
    assert figures(benchmarks) in benchmarks[:2000]
    assert len(readme.splitlines()) <= 150


def test_readme_names_what_is_not_there_yet() -> None:
    missing = [cells[0] for cells in rows().values() if cells[1] == "not yet"]
    assert f"Not there yet: {', '.join(missing)}" in " ".join(text_of(PROJECT / "README.md").split())


def test_every_option_is_documented() -> None:
    """C1, C6: and nothing else is."""
    from spark_jms.settings.options import VIEWS
    from spark_jms.spark.options import ACCEPTED

    text = text_of(PROJECT / "docs/OPTIONS.md")
    table = text.split("\n## ")[1]
    assert table.startswith("Options of format")
    named = [
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`(\w+)`", row.split("|")[1])
    ]
    assert sorted(named) == ACCEPTED
    for view in VIEWS:
        assert f"\n| `{view}` |" in text


def test_every_message_column_is_documented() -> None:
    """C2"""
    from spark_jms.core.messages.columns import COLUMNS

    named = re.findall(r"^\| `(\w+)` \|", text_of(PROJECT / "docs/MESSAGES.md"), re.MULTILINE)
    assert named == list(COLUMNS)


def test_every_error_is_documented() -> None:
    text = text_of(PROJECT / "docs/OPERATING.md")
    for file in ("spark_jms/errors.py", "store/errors.py"):
        names = re.findall(r"^class (\w+)", (PROJECT / file).read_text(), re.MULTILINE)
        assert names
        assert [name for name in names if f"`{name}`" not in text] == []


def test_every_feature_has_a_row() -> None:
    found = rows()
    assert set(found) == IDS
    states = [cells[1] for cells in found.values()]
    assert set(states) == STATES
    counts = f"{states.count('done')} done, {states.count('part')} in part, {states.count('not yet')} not yet."
    assert counts in text_of(PROJECT / "docs/FEATURES.md").splitlines()


@pytest.mark.parametrize("name", sorted(IDS))
def test_a_feature_that_is_there_has_a_test_that_names_it(name: str) -> None:
    """Done: file and test exist, and a docstring of the test names the id. Part: they exist, and it says what is missing."""
    _, state, said, where, test = rows()[name]
    files = [re.findall(r"\]\(\.\./([^)]+)\)", cell) for cell in (where, test)]
    if state == "not yet":
        assert files == [[], []]
        return
    assert all(files), f"{name} is {state}, but names no file or no test"
    assert all((PROJECT / path).is_file() for paths in files for path in paths)
    assert len(said) > 10
    if state == "done":
        named = {found for path in files[1] for found in ids_in_docstrings(PROJECT / path)}
        assert name in named, f"no docstring of {files[1]} names {name}"


def ids_in_docstrings(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds)]
    return set(re.findall(r"\b[CRSDTM]\d+\b", " ".join(texts)))


@each_page
def test_no_machine_paths(page: Path) -> None:
    assert not _HOME.findall(text_of(page))


@each_page
def test_every_page_can_be_found(page: Path) -> None:
    """From the README, directly or by the page that it names for Spark."""
    named = text_of(PROJECT / "README.md") + re.sub(r"\]\((\w+\.md)", r"](docs/\1", text_of(PROJECT / "docs/SPARK.md"))
    assert page.name == "README.md" or f"docs/{page.name}" in named
