"""Code blocks of the documentation, to be run as a reader runs them; and what pages and programs promise to print."""

from __future__ import annotations

import ast
import re
import textwrap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tests.harness.project import PROJECT


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    heading: str  # the nearest one above
    page: str = ""
    line: int = 0
    prints: str | None = None  # the block of text directly below

    @property
    def commands(self) -> list[str]:
        """The lines without their comments; one that ends in a backslash with the next."""
        lines = (re.sub(r"\s{2,}#.*", "", line).strip() for line in self.text.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@lru_cache
def blocks(page: str) -> tuple[Block, ...]:
    """In reading order."""
    text = (PROJECT / page).read_text(encoding="utf-8")
    found = []
    for match in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```\n(?:\n```text\n(.*?)^```)?", text, re.MULTILINE | re.DOTALL):
        above = text[: match.start()]
        headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", above, flags=re.M | re.S), re.M)
        heading, line = headings[-1] if headings else "", above.count("\n") + 1
        found.append(Block(match[2], textwrap.dedent(match[3]), heading, page, line, match[4]))
        if match[4] is not None:
            found.append(Block("text", match[4], heading, page, line))
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


def prints_what_is_promised(printed: str, text: str) -> bool:
    """As `lines(printed) == promised(text)`; and a line of `…` alone stands for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else ".*".join(map(re.escape, " ".join(line.split()).split("…"))) + r"\n"
        for line in lines(text)
    )
    return re.fullmatch(pattern, "".join(" ".join(line.split()) + "\n" for line in lines(printed))) is not None


def says_it_prints(program: Path) -> list[str]:
    """The lines below "It prints" in a program's docstring."""
    docstring = ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))) or ""
    assert "\nIt prints\n" in docstring, f"{program.name} does not say what it prints"
    return promised(docstring.split("\nIt prints\n")[1])
