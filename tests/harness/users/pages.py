"""Code blocks of the documentation, to be run as a reader runs them; and what pages and programs promise to print."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.harness.project import PROJECT


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    heading: str  # the nearest one above

    @property
    def commands(self) -> list[str]:
        """The lines without their comments."""
        lines = (re.sub(r"\s{2,}#.*", "", line).strip() for line in self.text.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


@lru_cache
def blocks(page: str) -> tuple[Block, ...]:
    """In reading order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^```(\w*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text[: match.start()], flags=re.M | re.S), re.M)
        found.append(Block(match[1], match[2], headings[-1] if headings else ""))
    return tuple(found)


def block(page: str, language: str, containing: str) -> Block:
    """The only one with that text."""
    (found,) = (one for one in blocks(page) if one.language == language and containing in one.text)
    return found


class Line(str):
    """A line of output as it is promised: equal to a line that differs only where it has `…`, and in the width of its spaces."""

    __hash__ = str.__hash__

    def __eq__(self, printed: object) -> bool:
        pattern = ".*".join(map(re.escape, " ".join(self.split()).split("…")))
        return isinstance(printed, str) and re.fullmatch(pattern, " ".join(printed.split())) is not None

    def __ne__(self, printed: object) -> bool:
        return not self == printed


def lines(text: str) -> list[str]:
    """Of what a program has printed, without empty ones."""
    return [line for line in text.splitlines() if line.strip()]


def promised(text: str) -> list[str]:
    """Each line as a Line, to be compared with `lines`."""
    return [Line(line) for line in lines(text)]


def says_it_prints(program: Path) -> list[str]:
    """The lines below "It prints" in a program's docstring."""
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    assert "\nIt prints\n" in docstring, f"{program.name} does not say what it prints"
    return promised(docstring.split("\nIt prints\n")[1])
