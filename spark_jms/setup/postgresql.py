"""Finds a PostgreSQL server's programs, or installs Debian's package. The tests of the JDBC store start servers of their own
from them, and neither use nor change an installed or running server."""

from __future__ import annotations

import glob
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_jms.setup.errors import PostgresqlInstallError, PostgresqlNotFoundError
from spark_jms.setup.java import can_install, run_apt

USUAL_PLACES = (
    "/usr/lib/postgresql/*/bin",
    "/usr/pgsql-*/bin",
    "/opt/homebrew/opt/postgresql*/bin",
    "/usr/local/pgsql/bin",
)
PROGRAMS = ("initdb", "postgres")
DEBIAN_PACKAGE = "postgresql"


def find_postgresql(places: Iterable[str] = USUAL_PLACES) -> Path:
    """The directory of the newest server's programs. PostgresqlNotFoundError, which names the command to run."""
    found = [Path(name) for place in places for name in glob.glob(place) if _is_whole(Path(name))]
    on_path = shutil.which("postgres")
    if on_path is not None and _is_whole(Path(on_path).resolve().parent):
        found.append(Path(on_path).resolve().parent)
    if not found:
        raise PostgresqlNotFoundError(f"{PostgresqlNotFoundError()!s}\nRun: {command_to_run()}")
    return max(found, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))] or [0])


def _is_whole(directory: Path) -> bool:
    return all(os.access(directory / program, os.X_OK) for program in PROGRAMS)


def install_postgresql(run: Callable[[list[str]], int] | None = None, places: Iterable[str] = USUAL_PLACES) -> Path:
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
        raise PostgresqlInstallError(f"{PostgresqlInstallError()!s}\nRun: {command_to_run()}")
    return find_postgresql(places)


def command_to_run(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> str:
    if platform == "darwin":
        return "brew install postgresql"
    if which("apt-get"):
        return f"sudo apt-get update && sudo apt-get install -y --no-install-recommends {DEBIAN_PACKAGE}"
    if which("dnf"):
        return "sudo dnf install -y postgresql-server"
    return "install a PostgreSQL server, 14 or newer, with its programs on the PATH"
