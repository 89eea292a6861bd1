"""The generated documentation of settings is up to date (C6, C16)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spark_jms.module import load_module
from spark_jms.settings.document import GROUPS, main, page, with_header
from spark_jms.settings.table import Setting
from tests.harness.project import PROJECT

ROWS = {f"{group.name} {name}": row for group in GROUPS.values() for name, row in group.settings.items()}


def test_options_page_is_up_to_date() -> None:
    """C6, C16, T18: the generated reference of every name and default."""
    assert (PROJECT / "docs" / "OPTIONS.md").read_text(encoding="utf-8") == page(), "run: make options"


def test_module_file_header_is_up_to_date() -> None:
    shipped = (PROJECT / "conf" / "jms-module.yaml").read_text(encoding="utf-8")
    assert shipped == with_header(shipped), "run: make options"


def test_commented_example_is_valid(tmp_path: Path) -> None:
    shipped = (PROJECT / "conf" / "jms-module.yaml").read_text(encoding="utf-8")
    file = tmp_path / "module.yaml"
    file.write_text(re.sub(r"^  # ", "  ", shipped, flags=re.MULTILINE), encoding="utf-8")
    assert [d.name for d in load_module(file).destinations] == ["orders", "prices", "invoices", "readings"]


def test_command_writes_page_and_header(tmp_path: Path) -> None:
    for folder in ("docs", "conf"):
        (tmp_path / folder).mkdir()
    (tmp_path / "conf" / "jms-module.yaml").write_text("# old\ndestinations:\n  a: {kind: queue}\n", encoding="utf-8")
    main(tmp_path)
    assert (tmp_path / "docs" / "OPTIONS.md").read_text(encoding="utf-8") == page()
    assert load_module(tmp_path / "conf" / "jms-module.yaml").destinations[0].name == "a"


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_each_setting_is_documented(row: Setting) -> None:
    assert row.doc[0].isupper() or row.doc[0] == "…"
    assert row.doc.endswith((".", "…"))
    assert row.since
    assert row.type.range
    assert "|" not in row.doc + row.type.range + row.shown_default


def test_each_variable_in_the_code_has_a_row() -> None:
    named = set()
    for path in (PROJECT / "spark_jms").rglob("*.py"):
        if "demo" not in path.parts:
            named |= set(re.findall(r'"((?:JMSQ|RS)_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    assert named == {*GROUPS["environment"].settings, *GROUPS["daemon"].settings}
