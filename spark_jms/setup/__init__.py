"""Prepares the machine: Java, Delta's jars, and a Spark session with both. Imports nothing heavy."""

from spark_jms.setup.machine import (
    DeltaJarsCorruptError,
    DeltaJarsMissingError,
    DeltaJarsResolveError,
    DeltaVersionError,
    Java,
    JavaInstallError,
    JavaNotFoundError,
    SessionConflictError,
    SetupError,
    find_java,
    install_java,
)
from spark_jms.setup.session import delta_jars, ensure_delta_jars, spark_session

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
    "DeltaVersionError",
    "SessionConflictError",
]
