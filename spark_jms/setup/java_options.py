"""Options of a JVM that lives for seconds to a minute and moves few rows, as in the demo and the tests: its start counts."""

from __future__ import annotations

from pathlib import Path

from spark_jms.setup.jars import cache_dir

# Without the optimizing compiler, which would use more CPU than the code does, and without verification of the bytecode of
# Spark's classes. A session that sends and drains a few times takes half the CPU time so, and two thirds of the memory.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def short_lived_options() -> str:
    """With Spark's classes parsed and linked in an archive (`make classes`) an application needs 7 s of CPU time less to its
    first batch. Another Java, or another class path, ignores the archive."""
    archive = class_archive()
    return SHORT_LIVED + (f' -XX:SharedArchiveFile="{archive}" -Xlog:disable' if archive.is_file() else "")


def class_archive() -> Path:
    return cache_dir() / "spark-classes.jsa"
