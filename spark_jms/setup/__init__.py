"""Prepares the machine: Java, Delta's jars, and a Spark session with both. Imports nothing heavy."""

from spark_jms.setup.errors import (
    DeltaJarsCorruptError,
    DeltaJarsMissingError,
    DeltaJarsResolveError,
    JavaInstallError,
    JavaNotFoundError,
    SessionConflictError,
    SetupError,
)
from spark_jms.setup.jars import delta_jars, ensure_delta_jars
from spark_jms.setup.java import Java, find_java, install_java
from spark_jms.setup.session import spark_session

__all__ = [
    "spark_session",
    "delta_jars",
    "ensure_delta_jars",
    "Java",
    "find_java",
    "install_java",
    "SetupError",
    "JavaNotFoundError",
    "JavaInstallError",
    "DeltaJarsMissingError",
    "DeltaJarsCorruptError",
    "DeltaJarsResolveError",
    "SessionConflictError",
]
