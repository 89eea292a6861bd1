"""The peers' jars, resolved once into `.cache/bench/jars` by the Ivy that PySpark ships.

Ivy is run by itself (`org.apache.ivy.Main`) with settings and a cache of its own, so that a half-filled `~/.m2` of
somebody else's Maven run cannot break it. The connector's dependencies are named one by one and without their own: its
token provider of the same version is not in every mirror of Maven Central, 4.0.0 works in its place, and everything
else that its pom names is in PySpark already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import quoteattr

from benchmarks.errors import PeerMissingError

KAFKA = "4.3.1"
SPARK = "4.2.0"
LOG4J = "2.25.4"
RESOLVE_TIMEOUT_S = 900
REPOSITORY = os.environ.get("JMSQ_MAVEN_REPOSITORY", "https://repo1.maven.org/maven2/")


@dataclass(frozen=True)
class JarSet:
    """A set of Maven modules, with or without their dependencies."""

    name: str
    modules: tuple[tuple[str, str, str], ...]
    transitive: bool


BROKER = JarSet(
    f"kafka-broker-{KAFKA}",
    (
        ("org.apache.kafka", "kafka_2.13", KAFKA),
        ("org.apache.kafka", "kafka-tools", KAFKA),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J),
        ("org.apache.logging.log4j", "log4j-core", LOG4J),
    ),
    transitive=True,
)
CONNECTOR = JarSet(
    f"spark-kafka-{SPARK}",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.2"),
        ("org.apache.commons", "commons-pool2", "2.13.1"),
    ),
    transitive=False,
)


def java() -> str:
    """The Java that the project's set-up finds, so that broker and Spark run on the same one."""
    from spark_jms.setup.machine import find_java

    return str(find_java().home / "bin" / "java")


def ensure(jar_set: JarSet, cache: Path) -> list[Path]:
    """The jars of the set, from the cache or resolved now. PeerMissingError if they cannot be resolved."""
    home = cache / "jars" / jar_set.name
    if not (home / "_COMPLETE").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        _retrieve(jar_set, cache, home)
        (home / "_COMPLETE").touch()
    return sorted(home.glob("*.jar"))


def ivy_module(jar_set: JarSet) -> str:
    """The set as an ivy.xml."""
    lines = [
        f"<dependency org={quoteattr(group)} name={quoteattr(name)} rev={quoteattr(revision)}"
        f' transitive="{str(jar_set.transitive).lower()}" conf="default->master,compile(*),runtime(*)"/>'
        for group, name, revision in jar_set.modules
    ]
    return (
        f'<ivy-module version="2.0"><info organisation="bench" module={quoteattr(jar_set.name)} revision="1"/>'
        f'<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _retrieve(jar_set: JarSet, cache: Path, home: Path) -> None:
    ivy_home = cache / "ivy"
    ivy_home.mkdir(parents=True, exist_ok=True)
    settings, module = home / "ivysettings.xml", home / "ivy.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="central"/><caches defaultCacheDir={quoteattr(str(ivy_home))}/>'
        "<resolvers>"
        f'<ibiblio name="central" m2compatible="true" root={quoteattr(REPOSITORY)}/></resolvers></ivysettings>',
        encoding="utf-8",
    )
    module.write_text(ivy_module(jar_set), encoding="utf-8")
    command = [java(), "-jar", str(_ivy_jar()), "-settings", str(settings), "-ivy", str(module)]
    command += ["-retrieve", str(home / "[artifact]-[revision].[ext]"), "-types", "jar", "bundle", "-warn"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise PeerMissingError(f"{jar_set.name}: Ivy did not end within {RESOLVE_TIMEOUT_S} s") from error
    absent = [name for _, name, revision in jar_set.modules if not (home / f"{name}-{revision}.jar").exists()]
    if run.returncode != 0 or absent:
        said = [
            line
            for line in (run.stdout + run.stderr).splitlines()
            if "::" in line or "ERROR" in line or "FAILED" in line
        ]
        reason = "; ".join(line.strip(" :\t") for line in said[:3])
        raise PeerMissingError(f"{jar_set.name}: Ivy could not resolve {', '.join(absent) or 'it'} ({reason[:300]})")


def _ivy_jar() -> Path:
    import pyspark

    found = sorted(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    if not found:
        raise PeerMissingError("PySpark ships no ivy-*.jar: cannot resolve the peers' jars")
    return found[-1]
