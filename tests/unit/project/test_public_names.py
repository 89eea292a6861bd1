"""C11: what an editor or a shell offers of the packages that applications import is what they may use."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import spark_jms
from spark_jms import errors


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
