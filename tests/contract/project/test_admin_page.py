"""docs/ADMIN.md: its program runs, prints what the page shows, and its tables name every call (C14)."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

from spark_jms.admin import Administrator
from tests.harness.project import PROJECT
from tests.harness.users.pages import blocks

PAGE = "docs/ADMIN.md"


def test_program_prints_what_the_page_shows(root: str) -> None:
    """C14: block by block, line by line."""
    names: dict[str, Any] = {"ROOT": root}
    compared = 0
    for block in blocks(PAGE):
        if block.language == "python":
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile(block.text, PAGE, "exec"), names)
        else:
            assert block.language == "text"
            assert printed.getvalue().splitlines() == block.text.splitlines()
            compared += 1
    assert compared == 2


def test_tables_name_every_call() -> None:
    """C14"""
    text = (PROJECT / PAGE).read_text(encoding="utf-8")
    rows = "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    calls = {name for name in vars(Administrator) if not name.startswith("_")} - {"close"}
    assert set(re.findall(r"`(\w+)\(", rows)) == calls
