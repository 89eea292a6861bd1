"""C11: what an editor or a shell offers of the packages that applications import is what they may use."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import pytest

import spark_jms
from spark_jms import errors
from tests.harness.project import PROJECT


@pytest.mark.parametrize("name", ["spark_jms.client", "spark_jms.admin", "spark_jms.aio", "spark_jms.testing"])
def test_package_offers_its_public_names(name: str) -> None:
    """C11: not its modules, nor what it imports."""
    module = importlib.import_module(name)
    assert sorted(dir(module)) == sorted(module.__all__)
    assert all(hasattr(module, each) for each in dir(module))


def test_top_package_offers_functions_and_packages() -> None:
    """C11: packages once they are imported."""
    offered = set(dir(spark_jms)) - set(spark_jms.__all__) - {"__version__"}
    assert "errors" in offered
    assert offered <= {found.name for found in pkgutil.iter_modules(spark_jms.__path__)}
    assert all(isinstance(getattr(spark_jms, name), ModuleType) for name in offered)


def test_errors_offer_errors() -> None:
    """C11"""
    assert "JmsqError" in dir(errors)
    assert all(issubclass(getattr(errors, name), Exception) for name in dir(errors))


def test_errors_that_operating_says_derive_from_its_base_class_are_in_one_module() -> None:
    """C11: an application imports what it may be told by name from where the page says it is. The last two tables are of stores."""
    page = (PROJECT / "docs/OPERATING.md").read_text(encoding="utf-8").split("## Errors by name")[1]
    own, _, _ = page.partition("Errors of the store (module")
    names = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in own.splitlines() if row.startswith("| `")))
    assert "QuotaExceededError" in names
    assert [name for name in names if name not in dir(errors)] == []


# The reference of the site (docs/site/conf.py) has a page for each.
REFERENCE = {
    *("spark_jms", "spark_jms.client", "spark_jms.aio", "spark_jms.admin", "spark_jms.errors", "spark_jms.setup"),
    *("spark_jms.spark.fresh", "spark_jms.metrics", "spark_jms.testing"),
}


def public(name: str) -> Iterator[tuple[str, object]]:
    """Functions and classes, and the methods and properties of these."""
    module = importlib.import_module(name)
    for exported in getattr(module, "__all__", ["fresh"] if name.endswith("fresh") else dir(module)):
        one = getattr(module, exported)
        if inspect.isfunction(one) or inspect.isclass(one):
            yield f"{name}.{exported}", one
        for member, value in vars(one).items() if inspect.isclass(one) else ():
            function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
            if member[0] != "_" and inspect.isfunction(function):
                yield f"{name}.{exported}.{member}", function


@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_public_names_say_what_they_are(name: str) -> None:
    """C11: each has a docstring of its own, not the one that a dataclass makes of its fields."""
    found = dict(public(name))
    assert found
    assert [
        each for each, one in found.items() if not one.__doc__ or one.__doc__.startswith(f"{each.split('.')[-1]}(")
    ] == []


def test_reference_of_the_site_is_of_these() -> None:
    """C11"""
    tree = ast.parse((PROJECT / "docs/site/conf.py").read_text(encoding="utf-8"))
    (table,) = (n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "REFERENCE")
    assert set(ast.literal_eval(table)) == REFERENCE
