"""The extras of an installation, and the error for a part whose packages are not installed.

`pip install spark-jms` brings the client and `jmsq`. Everything else imports its packages inside `needs(extra)`, or is
reached through it, so that a missing one is named together with the command that installs it.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

EXTRAS: Mapping[str, tuple[str, ...]] = {  # extra -> what Python imports; setup.py names the distributions
    "spark": ("pyspark", "delta", "pandas"),
    "replicated": ("msgspec", "aiohttp", "uvloop", "prompt_toolkit", "psutil"),
    "postgresql": ("sqlalchemy", "psycopg", "msgspec"),
    "objectstore": ("obstore",),
    "console": ("aiohttp", "msgspec"),
    "metrics": ("prometheus_client",),
    "tracing": ("opentelemetry",),
}


class MissingExtraError(ImportError):
    """A part of spark-jms needs packages that are not installed: install the extra that the message names."""

    def __init__(self, extra: str, package: str) -> None:
        super().__init__(extra, package)
        self.extra, self.package = extra, package
        self.name = package

    def __str__(self) -> str:
        return f"{self.package} is not installed: pip install 'spark-jms[{self.extra}]'"


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Imports inside raise MissingExtraError when a package of the extra is missing. Other errors stay as they are."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = _package(error)
        if package not in EXTRAS[extra]:
            raise
        raise MissingExtraError(extra, package) from error


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The error to show for this one: None when no extra brings the module."""
    package = _package(error)
    return next((MissingExtraError(extra, package) for extra, names in EXTRAS.items() if package in names), None)


def _package(error: ModuleNotFoundError) -> str:
    return (error.name or "").partition(".")[0]
