"""python -m spark_jms.setup java|jars|postgresql|check   (uses only the standard library, so it runs when little else works)."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from spark_jms.setup.machine import (
    PREFERRED_MAJORS,
    Java,
    JavaNotFoundError,
    PostgresqlInstallError,
    PostgresqlNotFoundError,
    SetupError,
    can_install,
    find_java,
    find_postgresql,
    install_java,
    install_postgresql,
)
from spark_jms.setup.session import FETCHED, cache_dir, delta_jars, ensure_delta_jars, jar_dir, resolve_by_ivy
from spark_jms.setup.step import step


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m spark_jms.setup", description="Prepares this machine for spark-jms."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    java = commands.add_parser("java", help="print the Java home that Spark will run on")
    java.add_argument("--install", action="store_true", help="install it if possible (root, Debian or Ubuntu)")
    java.add_argument("--write", type=Path, metavar="FILE", help="write the home to a file, and print only changes")
    commands.add_parser("jars", help="fetch Delta's jars into the cache, once")
    postgresql = commands.add_parser(
        "postgresql", help="print the directory of a PostgreSQL server, for the tests of the JDBC store"
    )
    postgresql.add_argument(
        "--install", action="store_true", help="install it if possible; otherwise say how, and continue"
    )
    commands.add_parser("check", help="show what is installed, verify every checksum, fetch nothing")
    options = parser.parse_args(arguments)
    try:
        if options.command == "java":
            _java(options.install, options.write)
        elif options.command == "jars":
            _jars()
        elif options.command == "postgresql":
            _postgresql(options.install)
        else:
            _check()
    except SetupError as error:
        print(f"spark-jms: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _java(install: bool, file: Path | None) -> None:
    try:
        java = find_java()
    except JavaNotFoundError:
        if not (install and can_install()):
            raise
        with step("Java", _log("java")):
            java = install_java()
    if file is None:
        print(java.home)
    elif not file.is_file() or file.read_text(encoding="utf-8").strip() != str(java.home):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{java.home}\n", encoding="utf-8")
        print(f"== {_describe(java)}")


def _jars() -> None:
    try:
        delta_jars(verify=True)
    except SetupError:
        log = _log("jars")
        with step("Delta's jars", log, FETCHED):
            ensure_delta_jars(resolve=partial(resolve_by_ivy, log=log))


def _postgresql(install: bool) -> None:
    try:
        found = find_postgresql()
    except PostgresqlNotFoundError as error:
        if not install:
            raise
        _install_postgresql(error)
    else:
        if not install:
            print(found)


def _install_postgresql(missing: PostgresqlNotFoundError) -> None:
    error: SetupError = missing
    if can_install():
        try:
            with step("PostgreSQL", _log("postgresql")):
                install_postgresql()
            return
        except (PostgresqlNotFoundError, PostgresqlInstallError) as failure:
            error = failure
    print(f"spark-jms: the tests that need PostgreSQL will be skipped: {error}", file=sys.stderr)


def _log(name: str) -> Path:
    """What the commands of a step print."""
    return cache_dir() / "logs" / f"{name}.log"


def _check() -> None:
    print(_describe(find_java()))
    print(f"Delta: {len(delta_jars(verify=True))} jars in {jar_dir()}, checksums correct")


def _describe(java: Java) -> str:
    tried = "" if java.major in PREFERRED_MAJORS else " (newer than the tested versions)"
    return f"Java {java.version}{tried}: {java.home} ({java.origin})"


if __name__ == "__main__":
    sys.exit(main())
