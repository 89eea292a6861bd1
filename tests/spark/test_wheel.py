"""The wheel in an empty environment with its real dependencies, as a user without this tree installs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from spark_jms.setup import find_java
from tests.sessions import JAVA_ENVIRONMENT

PROJECT = Path(__file__).parents[2]
PACKAGES = ("spark_jms", "store")
DECOYS = ("store", "conf", "core", "client", "log", "records")  # names a user's own modules may have
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "pyspark_jmsq.py", *PACKAGES)
NOT_SHIPPED = {".sh", ".pyc"}
OFFLINE = ("NewConnectionError", "NameResolutionError", "Network is unreachable", "ConnectTimeoutError")
MODULE_FILE = """
destinations:
  orders: {kind: distributed-queue, members: 2}
"""
# Neither spark_session nor register: only Spark and the installed package.
SEND_AND_BROWSE = """
import sys
from pathlib import Path
import spark_jms
from pyspark.sql import SparkSession

root = sys.argv[1]
assert Path(spark_jms.__file__).is_relative_to(sys.prefix), spark_jms.__file__
spark = (
    SparkSession.builder.master("local[2]").appName("wheel")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
sent = spark.range(100).selectExpr("concat('order ', id) AS text")
sent.write.format("jmsq").option("root", root).option("destination", "orders").mode("append").save()
messages = spark.read.format("jmsq").option("root", root).option("destination", "orders").load().collect()
assert sorted(m.text for m in messages) == sorted(f"order {n}" for n in range(100)), len(messages)
assert len({m.JMSMessageID for m in messages}) == 100
places = sorted((m.member, m.sequence) for m in messages)
counts = {member: sum(1 for m, _ in places if m == member) for member, _ in places}
assert len(counts) == 2, counts
assert places == [(m, n) for m in sorted(counts) for n in range(1, counts[m] + 1)], "sequences are not dense"
spark.stop()
print("BROWSED", len(messages))
"""

pytestmark = pytest.mark.timeout(1200)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel, and a working directory outside the tree."""

    venv: Path
    work: Path

    def run(self, *command: str, timeout_s: int = 180) -> subprocess.CompletedProcess[str]:
        python = self.venv / "bin" / "python"
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME", "JMSQ_ROOT")}
        return run(
            [str(self.venv / "bin" / command[0]), *command[1:]],
            cwd=self.work,
            env={
                **kept,
                **JAVA_ENVIRONMENT,
                "JAVA_HOME": str(find_java().home),
                "PYSPARK_PYTHON": str(python),
                "VIRTUAL_ENV": str(self.venv),
            },
            timeout_s=timeout_s,
        )

    def pip(self, *arguments: str) -> None:
        pip("--python", str(self.venv / "bin" / "python"), *arguments, cwd=self.work)


def run(
    command: list[str], cwd: Path, timeout_s: int, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def must(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def pip(*arguments: str, cwd: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = run(command, cwd=cwd, timeout_s=900, env=environment)
    if done.returncode != 0 and "CI" not in os.environ and any(sign in done.stdout + done.stderr for sign in OFFLINE):
        pytest.skip("no package index is reachable")
    must(done)


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    """Removed after the tests: an environment with Spark takes 1 GB, and pytest would keep three."""
    directory = Path(tempfile.mkdtemp(prefix="jmsq-wheel-"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def wheel(work: Path) -> Path:
    """Built from a copy, because a build leaves files in the tree that the next build would pick up."""
    source = work / "source"
    source.mkdir()
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif (PROJECT / name).exists():
            shutil.copy(PROJECT / name, source / name)
    pip("wheel", "--no-deps", "-w", str(work / "dist"), str(source), cwd=work)
    (path,) = (work / "dist").glob("spark_jms-*.whl")
    return path


@pytest.fixture(scope="module")
def installed(work: Path, wheel: Path) -> Installed:
    """An empty environment into which the pip of this one installs. Python compiles only the modules it imports."""
    environment = Installed(work / "venv", work)
    must(run([sys.executable, "-m", "venv", "--without-pip", str(environment.venv)], cwd=work, timeout_s=120))
    constraints = str(PROJECT / "constraints.txt")
    environment.pip("install", "--quiet", "--no-compile", "-c", constraints, str(wheel))
    return environment


def test_wheel_contains_every_file_of_the_packages(wheel: Path) -> None:
    expected = {
        ("spark_jms/" if package == "store" else "") + path.relative_to(PROJECT).as_posix()
        for package in PACKAGES
        for path in (PROJECT / package).rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED and "__pycache__" not in path.parts
    }
    names = set(zipfile.ZipFile(wheel).namelist())
    assert sorted({*expected, "pyspark_jmsq.py"} - names) == []
    strangers = {name.split("/")[0] for name in names} - {"spark_jms", "pyspark_jmsq.py"}
    assert [name for name in strangers if not name.endswith(".dist-info")] == []


def test_installed_dependencies_are_consistent(installed: Installed) -> None:
    installed.pip("check")


def test_jmsq_command_is_installed(installed: Installed) -> None:
    help_text = must(installed.run("jmsq", "--help"))
    for word in ("apply", "list", "stat", "send", "receive", "browse"):
        assert word in help_text


def test_spark_finds_the_format_and_messages_round_trip(installed: Installed) -> None:
    """C1: also beside a user's own store.py and the like: neither breaks the other."""
    (installed.work / "module.yaml").write_text(MODULE_FILE, encoding="utf-8")
    root = str(installed.work / "domain")
    must(installed.run("jmsq", "apply", "--root", root, "module.yaml"))
    for name in DECOYS:
        (installed.work / f"{name}.py").write_text("raise ImportError(__file__)", encoding="utf-8")
    assert "BROWSED 100" in must(installed.run("python", "-c", SEND_AND_BROWSE, root))
    assert json.loads(must(installed.run("jmsq", "stat", "--root", root, "--json")))
