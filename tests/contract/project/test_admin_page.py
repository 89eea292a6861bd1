"""docs/ADMIN.md: its tables name every call (C14)."""

from __future__ import annotations

import re

from spark_jms.admin import Administrator
from tests.harness.project import PROJECT

PAGE = "docs/ADMIN.md"


def test_tables_name_every_call() -> None:
    """C14"""
    text = (PROJECT / PAGE).read_text(encoding="utf-8")
    rows = "\n".join(line.split(" | ")[0] for line in text.splitlines() if line.startswith("| `"))
    calls = {name for name in vars(Administrator) if not name.startswith("_")} - {"close"}
    assert set(re.findall(r"`(\w+)\(", rows)) == calls
