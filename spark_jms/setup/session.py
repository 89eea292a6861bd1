"""The Spark session of the demo, the notebooks and the tests: jars, Delta, Python, Java, loopback.

Ivy fetches Delta's jars once into a cache, and sessions use the files. The cache is JMSQ_CACHE, else `.cache` of the clone with
this file, else `spark-jms` in the user's cache directory. In it, `jars/<coordinate>/` holds the jars and `manifest.json` with
size and SHA-256 of each. One rename makes the directory appear, so it is complete or absent, however many set-ups run at once.

Ivy runs with a home of its own: with the user's it reads ~/.m2 first, and a repository with poms but without their
jars (as a `mvn` run with exclusions leaves) makes it fail. The cache omits jars that PySpark ships: Spark's class path
comes first, and a second copy would only cost time at every start.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jms.settings.table import needs
from spark_jms.setup.machine import (
    DeltaJarsCorruptError,
    DeltaJarsMissingError,
    DeltaJarsResolveError,
    DeltaVersionError,
    SessionConflictError,
    SetupError,
    find_java,
)
from spark_jms.setup.step import Countable, output_to

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The same as conf/spark-defaults.conf (a test compares them); a wheel has no conf/.
SPARK_DEFAULTS: Mapping[str, str] = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
DELTA = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
LOCAL = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.shuffle.partitions": "2",
}
LOCAL_MASTER = "local[2]"
WORKER_PYTHON = Path(__file__).parent / "spark-python.sh"
COORDINATE = "io.delta:delta-spark_4.2_2.13:4.4.0"
MANIFEST = "manifest.json"
RESOLVE_TIMEOUT_S = 900
RESOLVE_TRIES = 2
FETCHED = Countable(r"^\s*\[SUCCESSFUL \]", 33)  # Ivy's line of a fetched artifact


# Without the optimizing compiler, which would use more CPU than the code does, and without verification of the bytecode of
# Spark's classes. A session that sends and drains a few times takes half the CPU time so, and two thirds of the memory.
SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)


def spark_session(
    app_name: str,
    master: str = LOCAL_MASTER,
    delta: bool = True,
    conf: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> SparkSession:
    """A session ready for `format("jmsq")` and, with `delta`, for Delta tables. `conf` overrides every setting here. What Spark's
    processes print goes to the file `log`, as a notebook wants it (None: to where this process prints).

    As with Spark's builder, a running session of this process is returned unchanged; if it lacks Delta and `delta` is
    True, SessionConflictError. DeltaVersionError, if Delta has no jars for the installed PySpark. Sets JAVA_HOME in this process,
    to a Java it finds unless JAVA_HOME is suitable, and PYSPARK_PYTHON, to this Python unless it is set. In local mode the
    workers of this Python start by spark-python.sh.
    """
    with needs("spark"):
        from pyspark.sql import SparkSession

    if delta:
        _check_delta()
    if SparkSession.getActiveSession() is None:
        os.environ["JAVA_HOME"] = str(find_java().home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            os.environ.update(worker_python(os.environ))
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in session_conf(master, delta, conf).items():
        builder = builder.config(key, value)
    with nullcontext() if log is None else output_to(Path(log)):
        session = builder.getOrCreate()
    if delta and DELTA_EXTENSION not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise SessionConflictError
    return session


def worker_python(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Spark's Python processes on this machine use the installed PySpark and not pyspark.zip. Empty
    when they run another Python than this one or another Spark, or when the script is not executable."""
    ours = environment.get("PYSPARK_PYTHON") == sys.executable
    same_driver = environment.get("PYSPARK_DRIVER_PYTHON", sys.executable) == sys.executable
    if not (ours and same_driver and os.access(WORKER_PYTHON, os.X_OK)) or "SPARK_HOME" in environment:
        return {}
    script = str(WORKER_PYTHON)
    return {"PYSPARK_PYTHON": script, "PYSPARK_DRIVER_PYTHON": script, "SPARK_JMS_WORKER_PYTHON": sys.executable}


def session_conf(master: str, delta: bool, conf: Mapping[str, str] | None = None) -> dict[str, str]:
    """The settings of `spark_session`, also for `spark-submit --conf`."""
    settings = {**SPARK_DEFAULTS, "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if master.startswith("local"):
        settings |= LOCAL
    if delta:
        settings |= {**DELTA, "spark.jars": ",".join(delta_jars())}
    return {**settings, **(conf or {})}


def delta_fits() -> bool:
    """Whether Delta has jars for the installed PySpark: they are made for one minor version of Spark."""
    return ".".join(version("pyspark").split(".")[:2]) == _spark_of_delta()


def _spark_of_delta() -> str:
    return COORDINATE.split("_")[1]


def _check_delta() -> None:
    if not delta_fits():
        raise DeltaVersionError(
            f"Delta {COORDINATE.rpartition(':')[2]} has jars for Spark {_spark_of_delta()}, and PySpark {version('pyspark')} is "
            f"installed.\nUse spark_session(…, delta=False), or run: pip install 'pyspark=={_spark_of_delta()}.*'"
        )


# -- Delta's jars ------------------------------------------------------------------------------------------------------
# Ivy starts inside spark-submit, before any session; `user.home` comes from the password file, not from HOME.
RESOLVE_PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
home, ivy, coordinate = sys.argv[1:4]
builder = SparkSession.builder.master("local[1]").appName("jmsq-setup")
for key, value in {
    "spark.jars.packages": coordinate,
    "spark.jars.ivy": ivy,
    "spark.driver.extraJavaOptions": "-Duser.home=" + home,
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    **{key: os.environ[name] for key, name in (
        ("spark.jars.repositories", "JMSQ_IVY_REPOSITORIES"), ("spark.jars.ivySettings", "JMSQ_IVY_SETTINGS"),
    ) if os.environ.get(name)},
}.items():
    builder = builder.config(key, value)
builder.getOrCreate().stop()
"""


@dataclass(frozen=True)
class Jar:
    """One file of the manifest."""

    name: str
    size_bytes: int
    sha256: str


def cache_dir(environment: Mapping[str, str] | None = None) -> Path:
    """The directory for fetched files."""
    environment = os.environ if environment is None else environment
    if named := environment.get("JMSQ_CACHE", "").strip():
        return Path(named).expanduser().absolute()
    clone = Path(__file__).resolve().parents[2]
    if (clone / "setup.py").is_file() and (clone / "Makefile").is_file():
        return clone / ".cache"
    base = environment.get("XDG_CACHE_HOME", "").strip()
    return (Path(base) if base else Path.home() / ".cache") / "spark-jms"


def jar_dir(cache: Path | None = None, coordinate: str = COORDINATE) -> Path:
    return (cache or cache_dir()) / "jars" / coordinate.replace(":", "_")


def delta_jars(cache: Path | None = None, *, verify: bool = False) -> list[str]:
    """The cached jars, for `spark.jars`. Always checks sizes; with `verify`, as set-up does, checksums too.

    Raises DeltaJarsMissingError or DeltaJarsCorruptError, which name the command to run.
    """
    directory = jar_dir(cache)
    paths = []
    for jar in read_manifest(directory):
        path = directory / jar.name
        if not path.is_file() or path.stat().st_size != jar.size_bytes or (verify and _sha256(path) != jar.sha256):
            raise DeltaJarsCorruptError(f"{path} differs from {MANIFEST}.\nRun: {_command()}")
        paths.append(str(path))
    return paths


def read_manifest(directory: Path) -> list[Jar]:
    try:
        content = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        jars = [Jar(str(jar["name"]), int(jar["size_bytes"]), str(jar["sha256"])) for jar in content["jars"]]
    except FileNotFoundError:
        raise DeltaJarsMissingError(f"Delta's jars are not in {directory}.\nRun: {_command()}") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeltaJarsCorruptError(f"{directory / MANIFEST} is not readable ({error}).\nRun: {_command()}") from error
    if not jars:
        raise DeltaJarsCorruptError(f"{directory / MANIFEST} names no jar.\nRun: {_command()}")
    return jars


def ensure_delta_jars(
    cache: Path | None = None, resolve: Callable[[Path], Iterable[Path]] | None = None
) -> tuple[list[str], bool]:
    """The jars, fetched unless the cache is complete. The second value is True if anything was fetched."""
    try:
        return delta_jars(cache, verify=True), False
    except SetupError:
        pass
    directory = jar_dir(cache)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="jmsq-ivy-") as scratch:
        store_jars((resolve or resolve_by_ivy)(Path(scratch)), directory)
    return delta_jars(cache, verify=True), True


def store_jars(sources: Iterable[Path], directory: Path) -> None:
    """Copy jars into a directory that appears complete or not at all. A complete one that another set-up made meanwhile
    stays."""
    staging = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        jars = []
        for source in sorted(sources, key=lambda path: path.name):
            shutil.copyfile(source, staging / source.name)
            jars.append({"name": source.name, "size_bytes": source.stat().st_size, "sha256": _sha256(source)})
        manifest = {"coordinate": COORDINATE, "jars": jars}
        (staging / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        staging.chmod(0o755)
        _replace_directory(staging, directory)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def resolve_by_ivy(scratch: Path, log: Path | None = None) -> list[Path]:
    """Run Ivy through PySpark with a home of its own; the jars are in `scratch` and vanish with it. Ivy's lines go to the
    log."""
    log = log or scratch / "ivy.log"
    home, ivy = scratch / "home", scratch / "ivy"
    home.mkdir()
    environment = {key: value for key, value in os.environ.items() if key not in ("SPARK_HOME", "SPARK_CONF_DIR")}
    environment |= {"HOME": str(home), "JAVA_HOME": str(find_java().home), "PYSPARK_PYTHON": sys.executable}
    environment.pop("PYSPARK_SUBMIT_ARGS", None)
    command = [sys.executable, "-c", RESOLVE_PROGRAM, str(home), str(ivy), COORDINATE]
    for _ in range(RESOLVE_TRIES):  # Ivy continues an interrupted fetch
        try:
            with log.open("ab") as output:
                done = subprocess.run(
                    command,
                    env=environment,
                    cwd=scratch,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=RESOLVE_TIMEOUT_S,
                    check=False,
                )
        except subprocess.TimeoutExpired as error:
            raise DeltaJarsResolveError(f"Ivy did not end within {RESOLVE_TIMEOUT_S} s.\nRun: {_command()}") from error
        if done.returncode == 0:
            return without_sparks_own((ivy / "jars").glob("*.jar"), sparks_own_jars())
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    wanted = [line for line in lines if re.search(r"not found|UNRESOLVED|Exception|Error", line)]
    detail = "\n".join(f"  {line.strip()}" for line in (wanted or lines)[-12:])
    raise DeltaJarsResolveError(f"Ivy could not fetch {COORDINATE}:\n{detail}\nWith a network, run: {_command()}")


def sparks_own_jars() -> list[str]:
    """The file names of the jars inside the installed PySpark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise SetupError("PySpark is not installed in this Python.\nRun: pip install 'spark-jms[spark]'")
    return [path.name for path in (Path(spec.origin).parent / "jars").glob("*.jar")]


def without_sparks_own(fetched: Iterable[Path], own: Iterable[str]) -> list[Path]:
    """Omit artifacts that Spark has in any version. Ivy names its files
    `<organisation>_<artifact>-<version>.jar`."""
    artifacts = {artifact_of(name) for name in own}
    return sorted(path for path in fetched if artifact_of(path.name.partition("_")[2] or path.name) not in artifacts)


def artifact_of(file_name: str) -> str:
    """ "delta-storage" of "delta-storage-4.4.0.jar"."""
    return re.sub(r"-\d[^-]*(-[^-]+)?\.jar$|\.jar$", "", file_name)


def _replace_directory(staging: Path, directory: Path) -> None:
    try:
        staging.rename(directory)
        return
    except OSError:
        if not directory.is_dir():
            raise
    try:
        for jar in read_manifest(directory):
            if _sha256(directory / jar.name) != jar.sha256:
                raise DeltaJarsCorruptError
    except (SetupError, OSError):
        broken = Path(tempfile.mkdtemp(prefix=".broken.", dir=directory.parent))
        directory.rename(broken / directory.name)
        staging.rename(directory)
        shutil.rmtree(broken, ignore_errors=True)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def _command() -> str:
    return f"{sys.executable} -m spark_jms.setup jars"


# -- JVMs that live for seconds ----------------------------------------------------------------------------------------
def short_lived_options() -> str:
    """Options of a JVM that lives for seconds to a minute and moves few rows, as in the demo and the tests: its start counts. With
    Spark's classes parsed and linked in an archive (`make classes`) an application needs 7 s of CPU time less to its first batch.
    Another Java, or another class path, ignores the archive."""
    archive = class_archive()
    return SHORT_LIVED + (f' -XX:SharedArchiveFile="{archive}" -Xlog:disable' if archive.is_file() else "")


def class_archive() -> Path:
    return cache_dir() / "spark-classes.jsa"
