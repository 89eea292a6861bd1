"""A destination as a table of Spark's catalog: CREATE TABLE t USING jmsq OPTIONS (root '…', destination '…').

Spark keeps the options of a table, but gives them to a Python source only at CREATE TABLE. At each later use it gives a reader the
schema, as the catalog has stored it. So CREATE TABLE stores the options in the schema: they are the *generation expression* of
the first column. Spark removes generation expressions from the schemas of DataFrames, because they belong to a table and not to
its rows. So no DataFrame has the options, nor a file or table that is written from one; a reader of the table alone sees them. A
writer gets the schema of the frame that is written. It never knows its table, and never takes options from a schema.

A table has no options in its schema if Spark did not ask this source for the columns: a table with a list of columns, of
CREATE TABLE … AS SELECT or of saveAsTable. Its readers need the options at each use.

Features: C1 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_jms.errors import DomainError, OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_jms.settings.options import Options

KEPT = ("root", "destination", "subscription", "selector", "columns", "view")  # where, and what: nothing else
_CREATES = "provider"  # Spark adds it for CREATE TABLE, and for nothing else
_FROM_OPTIONS = "option."  # Spark doubles each of OPTIONS under this prefix, and adds TBLPROPERTIES without it
_PLACE = "GENERATION_EXPRESSION"


def creates_table(given: Mapping[str, str]) -> bool:
    return _CREATES in given


def options_at_creation(given: Mapping[str, str]) -> dict[str, str]:
    """The options of CREATE TABLE, without properties of the table that are not ours. Raises OptionError for an option that a table
    does not keep."""
    from spark_jms.spark.options import ACCEPTED

    ours = {name.lower() for name in ACCEPTED}
    folded = {key.lower(): text for key, text in given.items()}
    options = {key: text for key, text in folded.items() if key in ours or _FROM_OPTIONS + key in folded}
    kept = {name.lower() for name in (*KEPT, "path")}
    if lost := [name for name in ACCEPTED if options.get(name.lower()) and name.lower() not in kept]:
        raise OptionError(
            f"a table does not keep option {', '.join(lost)}, only {', '.join(KEPT)}: leave it out, and give it at each use, by "
            f"{_at_use(lost[0], '…')} or .option({lost[0]!r}, …)"
        )
    return options


def table_schema(columns: str, given: Mapping[str, str], options: Options) -> StructType:
    """The schema that the catalog stores, with the options in it. `columns` as DDL. Raises OptionError for a root that has a password,
    because all who see a table see its root, and what `check_destination` raises."""
    from pyspark.sql.types import StructType

    from spark_jms.log.tables.object_store import open_storage
    from spark_jms.store.errors import shown_uri

    if (shown := shown_uri(options.root)) != options.root:
        raise OptionError(
            f"the root {shown} has a password, and a table shows its root to all: give the password by the environment, or use "
            "spark_jms.browse(spark, root, destination)"
        )
    check_destination(options)
    kept = {name: given[name.lower()] for name in KEPT if given.get(name.lower())}
    kept["root"] = open_storage(options.root).uri  # not relative to the directory of this process
    struct = StructType()
    for column in columns.split(", "):
        name, kind = column.split(" ")
        metadata = None if struct.fields else {_PLACE: json.dumps(kept)}
        struct.add(name, _types()[kind], True, metadata)
    return struct


def _types() -> dict[str, object]:
    """By the names that Spark's DDL has for them. `StructType.fromDDL` needs a SparkContext, which a source has not."""
    from pyspark.sql import types

    kinds = (
        types.StringType(),
        types.LongType(),
        types.IntegerType(),
        types.BooleanType(),
        types.BinaryType(),
        types.TimestampType(),
        types.MapType(types.StringType(), types.StringType()),
        types.ArrayType(types.StringType()),
    )
    return {kind.simpleString(): kind for kind in kinds}


def options_of_table(schema: StructType) -> dict[str, str]:
    """What `table_schema` stored, by folded names. Empty for another schema."""
    texts = [field.metadata[_PLACE] for field in schema if _PLACE in field.metadata]
    if not texts:
        return {}
    try:
        stored = json.loads(texts[0])
        return {name.lower(): stored[name] for name in KEPT if isinstance(stored.get(name), str)}
    except (ValueError, TypeError, AttributeError) as error:
        raise OptionError(
            f"the options that the table keeps in its schema are damaged ({texts[0]!r}): drop the table and create it again"
        ) from error


def check_destination(options: Options) -> None:
    """Raises DomainError when no domain is at the root, and InvalidDestinationError when it has no such destination: a managed table
    whose folder a later destination of its name would get would take that destination along when it is dropped."""
    from spark_jms.log.destinations.domain import Domain
    from spark_jms.spark.options import address_of

    Domain(options.root).log(address_of(options).destination)


def check_root(options: Options) -> None:
    """Raises DomainError when no domain is at the root that a table keeps."""
    from spark_jms.log.destinations.domain import Domain

    Domain(options.root)


def with_advice(error: OptionError | DomainError, stored: Mapping[str, str]) -> OptionError | DomainError:
    """What to do about a table whose options do not serve the use."""
    shown = ", ".join(f"{name} '{text}'" for name, text in stored.items())
    return type(error)(
        f"{error}. The table was created with OPTIONS ({shown}): give others at the use, by {_at_use('root', '…')} or "
        ".option('root', …), or drop the table, which leaves the destination as it is, and create it again"
    )


def _at_use(name: str, text: str) -> str:
    return f"SELECT … FROM t WITH ({name} = '{text}')"
