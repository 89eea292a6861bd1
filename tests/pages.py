"""Code blocks of the documentation, to be run as a reader runs them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

PROJECT = Path(__file__).parents[1]


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
