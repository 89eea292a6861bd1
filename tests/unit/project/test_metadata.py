"""What setup.py tells an index of packages (C11)."""

from __future__ import annotations

import re
import runpy
from importlib.metadata import distributions
from typing import Any

import pytest
import setuptools
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import spark_jms
from tests.harness.project import PROJECT

README = (PROJECT / "README.md").read_text(encoding="utf-8")
INTO_THE_TREE = re.compile(r"\]\((?![a-z]+:|#)([^)\s]+)\)")


@pytest.fixture
def setup_py(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names of setup.py, and the arguments of its call as `given`."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    return {**runpy.run_path(str(PROJECT / "setup.py")), "given": given}


def test_links_of_the_readme_lead_into_the_released_tree(setup_py: dict[str, Any]) -> None:
    """C11: from one constant, with the version; links elsewhere, and those inside the page, stay."""
    linked = setup_py["for_an_index"](README, "https://example.org/o/spark-jms", "1.2")
    assert INTO_THE_TREE.findall(linked) == []
    for path in INTO_THE_TREE.findall(README):
        assert f"(https://example.org/o/spark-jms/blob/v1.2/{path})" in linked
    text = "![a](docs/a.png) [b](https://b.example/c) [c](#limits) [LIMITS](docs/LIMITS.md#quotas)"
    assert setup_py["for_an_index"](text, "https://r.example/x", "1") == (
        "![a](https://r.example/x/raw/v1/docs/a.png) [b](https://b.example/c) [c](#limits) "
        "[LIMITS](https://r.example/x/blob/v1/docs/LIMITS.md#quotas)"
    )
    assert setup_py["for_an_index"](text, "", "1") == "a [b](https://b.example/c) [c](#limits) LIMITS"


def test_metadata_is_whole(setup_py: dict[str, Any]) -> None:
    """C11: and the description has no link that leads nowhere."""
    given = setup_py["given"]
    assert given["version"] == spark_jms.__version__
    for name in (
        "description",
        "long_description",
        "author",
        "keywords",
        "license",
        "license_files",
        "python_requires",
    ):
        assert given[name], name
    assert INTO_THE_TREE.findall(given["long_description"]) == []
    assert bool(given["project_urls"]) == bool(setup_py["REPOSITORY"])
    oldest = given["python_requires"].removeprefix(">=")
    assert f"Programming Language :: Python :: {oldest}" in given["classifiers"]
    assert f'python_version = "{oldest}"' in (PROJECT / "pyproject.toml").read_text(encoding="utf-8")


def test_pinned_packages_serve_every_python_3_11() -> None:
    """C11: a pin that an older 3.11 refuses ends `make` with a conflict that names another package. Of those installed here."""
    lines = (PROJECT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {canonicalize_name(line.split("==")[0]) for line in lines if "==" in line}
    pinned = [each for each in distributions() if canonicalize_name(each.name) in pins]
    refused = [
        f"{each.name} {each.version}: {wanted}"
        for each in pinned
        if not SpecifierSet(wanted := each.metadata.get("Requires-Python") or "").contains("3.11.0")
    ]
    assert len(pinned) > len(pins) // 2
    assert refused == []
