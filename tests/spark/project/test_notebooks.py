"""Each notebook runs from top to bottom in a fresh kernel on a few rows, with the outcome of its committed outputs, which name no
machine's paths."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

from tests.harness.processes.crash import PLUGIN
from tests.harness.users.notebooks import NOTEBOOKS, environment, execute

LARGEST_BYTES = 2**20
# A path of one machine, in outputs or cells.
MACHINE_PATHS = re.compile(r"(?<![\w./])/(home|root|work|tmp|Users|usr|var|opt)/[\w.-]+")


def account_of(notebook: nbformat.NotebookNode) -> tuple[int, ...]:
    """Of the one table that begins with them: messages sent, received, lost, doubled, and flagged as redelivered."""
    texts = (o.data["text/plain"] for c in notebook.cells for o in c.get("outputs", ()) if "data" in o)
    (table,) = (text.splitlines() for text in texts if text.split()[:3] == ["sent", "received", "lost"])
    return tuple(int(number) for number in table[1].split()[1:6])


def outcome(notebook: nbformat.NotebookNode) -> tuple[int, ...]:
    """What does not depend on the number of messages: missing, lost, doubled, flagged."""
    sent, received, *faults = account_of(notebook)
    return sent - received, *faults


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C1, C5, D4, T1: nothing is lost or doubled, as in the committed outputs; nothing else is printed."""
    monkeypatch.setenv("JMSQ_TOUR_ROWS", "4000")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, value in environment(PLUGIN).items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(path, as_version=4)
    committed = outcome(notebook)
    execute(notebook, tmp_path, timeout_s=500)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs) >= 3
    assert [output.text for cell in code for output in cell.outputs if output.get("name") == "stderr"] == []
    assert list(tmp_path.glob("jmsq-tour-*")) == []
    assert outcome(notebook) == committed == (0, 0, 0, 0)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_is_committed_with_the_outputs_of_a_complete_run(path: Path) -> None:
    assert path.stat().st_size < LARGEST_BYTES
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell.outputs]
    assert len(outputs) > len(code) // 2
    for output in outputs:
        assert output.output_type != "error"
        assert output.get("name") != "stderr"
        texts = [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k.startswith("text/"))]
        assert [found.group() for text in texts for found in MACHINE_PATHS.finditer(text)] == []
    assert [cell.source for cell in notebook.cells if MACHINE_PATHS.search(cell.source)] == []
