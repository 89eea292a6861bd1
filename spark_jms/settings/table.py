"""How a class of settings is declared, and how its values are read from text.

    @attrs.frozen
    class Limits(Table):
        retention_ms: int = setting("retention", Duration(high="36500 days"), 0, "How long finished messages stay.")

The class is an attrs class: it checks each value when it is made. `settings_of(Limits)` gives the declarations back.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import attrs

from spark_jms.settings.types import NotAllowed, Use, ValueType, near_to

REQUIRED = attrs.NOTHING
_METADATA = "setting"


@attrs.frozen
class Setting:
    """One declaration. `name` is what people write, `field` the Python attribute, `default` REQUIRED if there is none.
    `without` tells what happens when the default is None. `used_in` is for the options of Spark."""

    name: str
    type: ValueType
    doc: str
    since: str
    default: Any = None
    field: str = ""
    without: str = ""
    used_in: tuple[Use, ...] = ()
    variable: str = ""

    @property
    def stored_name(self) -> str:
        """In a table's metadata: the field in camel case."""
        first, *rest = self.field.split("_")
        return first + "".join(word.capitalize() for word in rest)

    @property
    def shown_default(self) -> str:
        if self.without:
            return self.without
        if self.variable:
            return f"environment variable {self.variable}"
        if self.default is REQUIRED:
            return "none: it must be given"
        return self.show(self.default) or "none"

    def show(self, value: object) -> str:
        return "" if value is None else self.type.show(value)


def setting(
    name: str,
    type: ValueType,
    default: Any,
    doc: str,
    *,
    since: str = "0.1",
    without: str = "",
    used_in: tuple[Use, ...] = (),
    variable: str = "",
) -> Any:
    """A field of a Table. See Setting."""
    row = Setting(name, type, doc, since, without=without, used_in=used_in, variable=variable)
    return attrs.field(default=default, validator=_check, metadata={_METADATA: row})


class Table:
    """The base of the classes whose fields are settings."""

    __slots__ = ()

    def refusal(self, row: Setting, value: object, allowed: str) -> Exception:
        """The error for a value that does not fit, when one is made in Python."""
        return NotAllowed(f"{allowed}, but {row.name} is {value!r}")


def settings_of(table: type[Table]) -> Mapping[str, Setting]:
    """The settings of a Table by the name that people write, in the order of their declaration."""
    rows = ((field, field.metadata.get(_METADATA)) for field in attrs.fields(cast(Any, table)))
    return {row.name: attrs.evolve(row, field=field.name, default=field.default) for field, row in rows if row}


def read_texts(
    table: type[Table], given: Mapping[str, str], refuse: Callable[[Setting, str, str], Exception]
) -> dict[str, Any]:
    """The values of the settings that are given, by field: `table(**read_texts(…))`. `refuse` makes the error of a
    setting, its text and what is allowed; other names in `given` are ignored."""
    values = {}
    for name, row in settings_of(table).items():
        if name in given:
            try:
                values[row.field] = row.type.read(given[name])
            except NotAllowed as error:
                raise refuse(row, given[name], error.allowed) from None
    return values


def hint(name: str, known: Mapping[str, object], form: str = "did you mean {!r}? ") -> str:
    """For an error about an unknown name: the known one that it may mean, or nothing."""
    near = near_to(name, known)
    return form.format(near) if near else ""


def _check(instance: Table, attribute: attrs.Attribute[Any], value: object) -> None:
    if type(value) is type(attribute.default) and value == attribute.default:
        return  # a default need not be one of the values that people may write: None, or empty text
    row: Setting = attribute.metadata[_METADATA]
    try:
        row.type.checked(value)
    except NotAllowed as error:
        raise instance.refusal(row, value, error.allowed) from None


# -- the extras of an installation -------------------------------------------------------------------------------------
EXTRAS: Mapping[str, tuple[str, ...]] = {  # extra -> what Python imports; setup.py names the distributions
    "spark": ("pyspark", "pandas", "google"),
    "delta": ("delta",),
    "connect": ("pyspark",),
    "replicated": ("msgspec", "aiohttp", "uvloop", "prompt_toolkit", "psutil"),
    "postgresql": ("sqlalchemy", "psycopg", "msgspec", "psutil"),
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
    """Imports inside raise MissingExtraError when a package of the extra is missing. Other errors stay as they are.

    `pip install spark-jms` brings the client and `jmsq`. Everything else imports its packages inside `needs(extra)`, or is reached
    through it, so that a missing one is named together with the command that installs it.
    """
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
