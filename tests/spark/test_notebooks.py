"""Each notebook runs from top to bottom in a fresh kernel on a few rows; the committed outputs name no machine's paths."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from spark_jms.setup.java import find_java
from tests.process.crash import PLUGIN

PROJECT = Path(__file__).parents[2]
NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))
LARGEST_BYTES = 2**20
# A path of one machine, in outputs or cells.
MACHINE_PATHS = re.compile(r"(?<![\w./])/(home|root|work|tmp|Users|usr|var|opt)/[\w.-]+")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JMSQ_TOUR_ROWS", "4000")
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join(filter(None, [str(PLUGIN), str(PROJECT), os.environ.get("PYTHONPATH")]))
    )
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=500, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    asyncio.run(client.async_execute())  # raises a cell's error
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    assert sum("image/png" in output.get("data", {}) for cell in code for output in cell.outputs) >= 3
    assert list(tmp_path.glob("jmsq-tour-*")) == []


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
