"""Runs notebooks in a fresh kernel. `python -m tests.harness.users.notebooks [NAME …]` records the outputs of all, or of some, to
be committed."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from spark_jms.setup import find_java
from tests.harness.project import PROJECT

NOTEBOOKS = sorted((PROJECT / "notebooks").glob("*.ipynb"))


def environment(*path: Path) -> dict[str, str]:
    """Of the kernel: this tree, and `path`, on its PYTHONPATH."""
    entries = [*map(str, path), str(PROJECT), os.environ.get("PYTHONPATH", "")]
    return {
        "JAVA_HOME": str(find_java().home),
        "JUPYTER_PLATFORM_DIRS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONPATH": os.pathsep.join(filter(None, entries)),
    }


def execute(notebook: nbformat.NotebookNode, directory: Path, timeout_s: int) -> None:
    """In this directory, with this process's environment; raises a cell's error. `timeout_s`: of a cell."""
    resources = {"metadata": {"path": str(directory)}}
    client = NotebookClient(notebook, timeout=timeout_s, kernel_name="python3", resources=resources)
    asyncio.run(client.async_execute())


def record(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as directory:
        execute(notebook, Path(directory), timeout_s=1800)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times
    nbformat.write(notebook, path)


if __name__ == "__main__":
    os.environ.update(environment())
    for one in NOTEBOOKS:
        if len(sys.argv) == 1 or one.stem in sys.argv[1:]:
            print(one.stem, flush=True)
            record(one)
