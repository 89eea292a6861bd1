"""The package as a user has it: the wheel in empty environments. Each is made once a run and removed at its end."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness.project import PROJECT

DIRECTORY_VARIABLE = "JMSQ_TEST_INSTALLATIONS"  # set by tests/conftest.py; the processes of a run share it
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "pyspark_jmsq.py", "spark_jms", "store", "MANIFEST.in")
OFFLINE = ("NewConnectionError", "NameResolutionError", "Network is unreachable", "ConnectTimeoutError")
BUILD_SDIST = "import sys, setuptools.build_meta; setuptools.build_meta.build_sdist(sys.argv[1])"
NOT_INHERITED = (
    *("PYTHONPATH", "SPARK_HOME", "JMSQ_ROOT", "VIRTUAL_ENV"),
    *("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_JMS_WORKER_PYTHON"),  # of a session in this process
)


def run(
    command: list[str], cwd: Path, env: Mapping[str, str] | None = None, timeout_s: int = 180
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout_s, check=False)


def must(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, f"{done.args}\n{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout


def pip(*arguments: str, cwd: Path) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = run(command, cwd, environment, timeout_s=900)
    if done.returncode != 0 and "CI" not in os.environ and any(sign in done.stdout + done.stderr for sign in OFFLINE):
        pytest.skip("no package index is reachable")
    must(done)


@dataclass(frozen=True)
class Installation:
    """An environment with the wheel. Commands run in a directory outside the tree."""

    venv: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    def run(self, *command: str, cwd: Path, timeout_s: int = 180) -> subprocess.CompletedProcess[str]:
        """The first word is a program of the environment, or of the PATH."""
        kept = {key: value for key, value in os.environ.items() if key not in NOT_INHERITED}
        path = f"{self.venv / 'bin'}:{self.variables.get('PATH', os.environ['PATH'])}"
        environment = {**kept, **self.variables, "VIRTUAL_ENV": str(self.venv), "PATH": path}
        program = shutil.which(command[0], path=path) or command[0]
        return run([program, *command[1:]], cwd, environment, timeout_s)

    def pip(self, *arguments: str) -> None:
        pip("--python", str(self.python), *arguments, cwd=self.venv.parent)


@contextmanager
def _once(name: str) -> Iterator[Path | None]:
    """A directory of the run to fill, or None when another test of the run, perhaps in another process, has filled it."""
    base = Path(os.environ[DIRECTORY_VARIABLE])
    with open(base / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = base / f"{name}.done"
        started = time.monotonic()
        yield None if done.exists() else base / name
        if not done.exists():
            done.write_text(f"{time.monotonic() - started}")


def _place(name: str) -> Path:
    return Path(os.environ[DIRECTORY_VARIABLE]) / name


def sdist_and_wheel() -> tuple[Path, Path]:
    """The wheel is built from the sdist, and the sdist from a copy: a build leaves files in the tree."""
    with _once("dist") as dist:
        if dist is not None:
            source, tools = _place("source"), _place("tools")
            source.mkdir()
            for name in SOURCES:
                ignored = shutil.ignore_patterns("__pycache__")
                if (PROJECT / name).is_dir():
                    shutil.copytree(PROJECT / name, source / name, symlinks=True, ignore=ignored)
                else:
                    shutil.copy(PROJECT / name, source / name)
            (source / "spark_jms/store").unlink(missing_ok=True)  # the link that git ignores
            pip("install", "--target", str(tools), "setuptools>=77", "wheel", cwd=source)
            built_with = {**os.environ, "PYTHONPATH": str(tools)}
            must(run([sys.executable, "-c", BUILD_SDIST, str(dist)], source, built_with))
            (made,) = dist.glob("*.tar.gz")
            build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            must(run([*build, "-w", str(dist), str(made)], source, built_with))
    (sdist,), (wheel,) = _place("dist").glob("*.tar.gz"), _place("dist").glob("*.whl")
    return sdist, wheel


def sdist_names(sdist: Path) -> set[str]:
    """Without the folder that carries the version."""
    with tarfile.open(sdist) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def seconds_to_install(installed: Installation) -> float:
    """Building the wheel and installing it, whichever test of the run waited for it."""
    return sum(float(_place(f"{name}.done").read_text()) for name in ("dist", installed.venv.name))


def installation(extra: str = "", variables: Mapping[str, str] | None = None) -> Installation:
    """An empty environment into which the pip of this one installs. Python compiles only the modules it imports."""
    _, wheel = sdist_and_wheel()
    name = f"environment-{extra or 'client'}"
    with _once(name) as venv:
        if venv is not None:
            must(run([sys.executable, "-m", "venv", "--without-pip", str(venv)], cwd=wheel.parent))
            what = f"{wheel}[{extra}]" if extra else str(wheel)
            Installation(venv).pip("install", "--no-compile", "-c", str(PROJECT / "constraints.txt"), what)
    return Installation(_place(name), variables or {})
