"""Notebooks and examples use what a user may use (C11): what public packages export, and nothing else."""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.project import PROJECT

PACKAGES = [f"spark_jms{name}" for name in ("", ".admin", ".aio", ".client", ".demo", ".errors", ".setup", ".testing")]
# Documented modules of their own. The last three start daemons on this machine, for a program that shows a cluster.
DOCUMENTED = {
    "spark_jms.spark.fresh": {"fresh"},
    "spark_jms.cli.__main__": {"cli"},
    "spark_jms.jobs.expiration": {"due_messages"},
    "spark_jms.jobs.usage": {"usage_by_minute"},
    "spark_jms.store.regions.admin": {"Admin"},
    "spark_jms.store.regions.admin.cluster": {"Cluster", "free_ports"},
    "spark_jms.store.regions.client.instance": {"StoreInstance"},
}
USERS = sorted(path for pattern in ("notebooks/*.ipynb", "examples/*.py") for path in PROJECT.glob(pattern))


def source_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


def imported(source: str) -> Iterator[tuple[str, str]]:
    """(module, name), of ours; the name is "" of `import module`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)


def is_public(module: str, name: str) -> bool:
    if module.split(".")[0] not in ("spark_jms", "store", "pyspark_jmsq"):
        return True
    if name in DOCUMENTED.get(module, ()):
        return True
    if module not in PACKAGES:
        return False
    exported = importlib.import_module(module)
    public = getattr(exported, "__all__", None) or dir(exported)  # errors: what it offers
    return not name or name in public or f"{module}.{name}" in PACKAGES


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.name)
def test_users_import_public_names(path: Path) -> None:
    """C11, C14"""
    assert [f"{module}: {name}" for module, name in imported(source_of(path)) if not is_public(module, name)] == []


def test_private_names_are_found() -> None:
    """C11"""
    ours = (
        "import spark_jms.log.destinations.domain\nfrom spark_jms import connect, _x\nfrom spark_jms.admin import move"
    )
    source = f"{ours}\nimport json"
    assert [pair for pair in imported(source) if not is_public(*pair)] == [
        ("spark_jms.log.destinations.domain", ""),
        ("spark_jms", "_x"),
        ("spark_jms.admin", "move"),
    ]
    assert len(USERS) > 15
