"""Extras: setup.py and the table agree, and a missing package names its extra (C11)."""

from __future__ import annotations

import inspect
import pickle
import re
import runpy
import sys
from typing import Any

import pytest
import setuptools

import spark_jms
from spark_jms import client, module
from spark_jms.settings.table import EXTRAS, MissingExtraError, missing_extra, needs
from spark_jms.setup.session import COORDINATE
from tests.harness.project import PROJECT

DISTRIBUTIONS = {
    "delta": "delta-spark",
    "google": "protobuf",
    "prometheus_client": "prometheus-client",
    "opentelemetry": "opentelemetry-api",
}  # where its name is not the module's
FOR_DEVELOPERS = {"test", "dev", "demo", "notebooks", "bench", "docs"}


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of setup.py's call."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", lambda **arguments: given.update(arguments))
    runpy.run_path(str(PROJECT / "setup.py"))
    return given


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[><=;~ ]", requirement)[0].lower() for requirement in requirements}


def test_extras_of_setup_py_are_those_of_the_table(metadata: dict[str, Any]) -> None:
    """C11"""
    declared = {extra: names(list_) for extra, list_ in metadata["extras_require"].items()}
    table = {extra: {DISTRIBUTIONS.get(name, name).lower() for name in modules} for extra, modules in EXTRAS.items()}
    assert {extra: declared[extra] for extra in EXTRAS} == table
    assert declared["all"] == set().union(*table.values())
    assert set(declared) == {*EXTRAS, "all", *FOR_DEVELOPERS}
    assert not names(metadata["install_requires"]) & {*declared["all"], "deltalake"}


def test_spark_is_a_range_and_notebooks_have_an_extra(metadata: dict[str, Any]) -> None:
    """C11: a library pins nothing, constraints.txt does. Spark needs no Delta, whose wheels go ahead of its jars."""
    extras = metadata["extras_require"]
    assert extras["spark"] == ["pyspark>=4.2,<4.4", "pandas>=2.2,<3", "protobuf>=6.33.5"]
    assert extras["delta"] == [f"delta-spark>={(delta := COORDINATE.split(':')[-1])},<{delta[:-1]}{int(delta[-1]) + 1}"]
    assert extras["connect"] == ["pyspark[connect]>=4.2,<4.4"]
    assert not [each for extra in EXTRAS for each in extras[extra] if "==" in each]
    assert {"notebook", "ipykernel", "matplotlib", "duckdb"} <= names(extras["notebooks"])
    assert "pip install spark-jms`" not in (PROJECT / "README.md").read_text(encoding="utf-8")


def test_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """C11: the error is an ImportError, pickles, and says what to install."""
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with (
        pytest.raises(
            MissingExtraError, match=r"psycopg is not installed: pip install 'spark-jms\[postgresql\]'"
        ) as caught,
        needs("postgresql"),
    ):
        import psycopg  # noqa: F401
    assert isinstance(caught.value, ImportError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    found = missing_extra(ModuleNotFoundError("No module named 'pyspark'", name="pyspark.sql"))
    assert found is not None
    assert found.extra == "spark"


def test_other_import_errors_stay_as_they_are() -> None:
    """C11: a mistake of ours, or a broken package, is not a missing extra."""
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), needs("spark"):
        import no_such_module  # noqa: F401
    assert missing_extra(ModuleNotFoundError("x", name="no_such_module")) is None


@pytest.mark.parametrize(("light", "real"), [(spark_jms.connect, client.connect), (spark_jms.apply, module.apply)])
def test_public_functions_have_the_signature_of_the_real_ones(light: Any, real: Any) -> None:
    """C11: the package's own functions only put off the imports."""
    assert inspect.signature(light) == inspect.signature(real)
    assert inspect.getdoc(light) == inspect.getdoc(real)
