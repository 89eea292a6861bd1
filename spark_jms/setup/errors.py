"""Errors of the machine's set-up. Every message ends with the command to run."""

from __future__ import annotations

from spark_jms.errors import JmsqError


class SetupError(JmsqError):
    """The machine is not ready for Spark. Run: make setup"""


class JavaNotFoundError(SetupError):
    """No Java that runs Spark 4.2 was found (17 or newer, with the module jdk.incubator.vector)."""


class JavaInstallError(SetupError):
    """The system's package manager could not install Java."""


class PostgresqlNotFoundError(SetupError):
    """No PostgreSQL server was found; only the tests of the JDBC store need one."""


class PostgresqlInstallError(SetupError):
    """The system's package manager could not install PostgreSQL."""


class DeltaJarsMissingError(SetupError):
    """Delta's jars are not in the cache. Run: python -m spark_jms.setup jars"""


class DeltaJarsCorruptError(SetupError):
    """A cached jar of Delta differs from its checksum. Run: python -m spark_jms.setup jars"""


class DeltaJarsResolveError(SetupError):
    """Ivy could not fetch Delta's jars. Check the network, then run: python -m spark_jms.setup jars"""


class SessionConflictError(SetupError):
    """A Spark session without Delta is running in this process. Stop it first:
    SparkSession.getActiveSession().stop()"""
