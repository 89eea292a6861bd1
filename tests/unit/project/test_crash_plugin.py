"""The crash points lie in functions that exist, and their predicates take those functions' arguments (C5, C9)."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import subprocess
import sys

import pytest

from tests.harness.processes.crash import MORE_POINTS, PLUGIN, POINTS, SERVICE_POINTS


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("crash_plugin", PLUGIN / "sitecustomize.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_crash_point_fits_its_function(plugin: object) -> None:
    where = plugin.WHERE  # type: ignore[attr-defined]
    assert {point.split("-", 1)[1] for point in (*POINTS, *MORE_POINTS, *SERVICE_POINTS)} == set(where)
    for name, owner, attribute, counts in where.values():
        module = importlib.import_module(name)
        function = getattr(getattr(module, owner) if owner else module, attribute)
        parameters = inspect.signature(function).parameters.values()
        positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]
        by_name = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
        inspect.signature(counts).bind(*positional, **by_name)


@pytest.mark.parametrize(("module", "pandas"), [("pyspark.nothing", "False"), ("nothing", "True")])
def test_only_processes_of_spark_lack_pandas(module: str, pandas: str) -> None:
    """pyarrow works in both, and imports pandas where it can."""
    program = "import pyarrow, sys; print(pyarrow.array([1, 2])[1], 'pandas' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(PLUGIN)}
    command = [sys.executable, "-c", program, "-m", module]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout.split() == ["2", pandas]
