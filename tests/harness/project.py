"""Where things lie."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PROJECT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"  # that tests start by their paths


def tool_of_docs(name: str) -> ModuleType:
    """A program of docs/ that draws a part of a page."""
    spec = importlib.util.spec_from_file_location(name, PROJECT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
