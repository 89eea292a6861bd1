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

    @classmethod
    def name(cls) -> str:
        return "jmsq"

    def _parsed(self, use: Use | None = None) -> Options:
        from spark_jms.spark.options import parse_options

        return parse_options(self.options, use)

    def _read(self, use: Use, schema: StructType) -> Options:
        from spark_jms.spark.browser import check_schema

        options = self._parsed(use)
        check_schema(options, schema)
        return options

    def schema(self) -> str:
        from spark_jms.spark.browser import view_schema

        return view_schema(self._parsed())

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
        from spark_jms.spark.sink import JmsqStreamWriter

        return JmsqStreamWriter(self._parsed(Use.WRITE_STREAM), schema, overwrite)
