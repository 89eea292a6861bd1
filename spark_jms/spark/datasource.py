"""format("jmsq"): the entry point for Spark. This module is cheap to import; each method imports what it needs.

Features: C1 (docs/FEATURES.md)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_jms.settings.types import Use

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from spark_jms.settings.options import Options


class JmsqDataSource(DataSource):
    """Streams, browses and sends messages. Options: see docs/OPTIONS.md; a wrong one raises OptionError."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises SparkVersionError. Spark imports this module whenever it looks for any source, so the import does not."""
        super().__init__(options)
        from spark_jms.spark.options import check_spark

        check_spark()

    @classmethod
    def name(cls) -> str:
        return "jmsq"

    def _parsed(self, use: Use | None = None) -> Options:
        from spark_jms.spark.options import parse_options

        return parse_options(self.options, use)

    def _read(self, use: Use, schema: StructType) -> Options:
        """Options at the use win over those that a table of the catalog keeps. A writer has none but its own."""
        from spark_jms.errors import DomainError, OptionError
        from spark_jms.spark.browser import check_schema
        from spark_jms.spark.catalog import check_root, options_of_table, with_advice
        from spark_jms.spark.changes import CHANGES
        from spark_jms.spark.options import check_streaming, parse_options

        stored = options_of_table(schema)
        given = {key.lower(): text for key, text in self.options.items()}
        try:
            options = parse_options({**stored, **given}, use)
            check_schema(options, schema, of_table=bool(stored))
            if use is Use.READ_STREAM and options.view != CHANGES:
                check_streaming(options)
            if stored:
                check_root(options)
        except (OptionError, DomainError) as error:
            if not stored:
                raise
            raise with_advice(error, stored) from error
        return options

    def schema(self) -> str | StructType:
        from spark_jms.spark.browser import view_schema
        from spark_jms.spark.catalog import creates_table, options_at_creation, table_schema
        from spark_jms.spark.options import parse_options

        if not creates_table(self.options):
            return view_schema(self._parsed())
        given = options_at_creation(self.options)
        options = parse_options(given)
        return table_schema(view_schema(options), given, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        from spark_jms.spark.browser import JmsqReader
        from spark_jms.spark.changes import CHANGES, ChangesReader

        options = self._read(Use.READ, schema)
        return ChangesReader(options) if options.view == CHANGES else JmsqReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from spark_jms.spark.changes import CHANGES, ChangesStreamReader
        from spark_jms.spark.source import JmsqStreamReader

        options = self._read(Use.READ_STREAM, schema)
        return ChangesStreamReader(options) if options.view == CHANGES else JmsqStreamReader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_jms.spark.sink import JmsqWriter

        return JmsqWriter(self._parsed(Use.WRITE), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_jms.settings.options import EXPIRE
        from spark_jms.spark.expiration_sink import ExpirationWriter
        from spark_jms.spark.sink import JmsqStreamWriter

        options = self._parsed(Use.WRITE_STREAM)
        return (ExpirationWriter if options.action == EXPIRE else JmsqStreamWriter)(options, schema, overwrite)
