"""Every program of examples/ without Spark prints, line by line, what its docstring says; tests/spark runs the others."""

from __future__ import annotations

import runpy

import pytest

from tests.harness.project import PROJECT
from tests.harness.users.pages import lines, says_it_prints

WITH_SPARK = {"replicated_checkpoint.py", *(path.name for path in (PROJECT / "examples").glob("spark_*.py"))}
EXAMPLES = sorted({path.name for path in (PROJECT / "examples").glob("*.py")} - WITH_SPARK)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_its_docstring_says(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """C6, C7, C11, C15, D4, D7, D10, M1, M7, M10, T6, T11, T12, T16"""
    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    runpy.run_path(str(PROJECT / "examples" / name), run_name="__main__")
    assert lines(capsys.readouterr().out) == says_it_prints(PROJECT / "examples" / name)
