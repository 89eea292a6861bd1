"""What a client-only installation costs: megabytes, and the time of an import and of `jmsq --help` (C11).

    python benchmarks/installation.py [--constraints constraints.txt] [--runs 10]

Builds the wheel, installs it with pip into an empty environment and measures there. Prints one line a figure. Bytes are
those of the disk blocks, pip itself not counted, Python's compiled modules counted.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROJECT = Path(__file__).parents[1]
MEBIBYTE = 2**20
SOURCES = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "pyspark_jmsq.py", "spark_jms", "store")
CONNECT = "from spark_jms import connect"
FIRST_MESSAGE = """
import sys, time
started = time.perf_counter()
from spark_jms import apply, connect
apply(sys.argv[1], {"destinations": {"orders": {"kind": "queue"}}})
with connect(sys.argv[1]) as context:
    context.producer("orders").send(text="hello")
    assert context.consumer("orders").receive(timeout=5).text == "hello"
print(time.perf_counter() - started)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--constraints", help="a constraints file for pip; without it the newest versions are measured")
    parser.add_argument("--runs", type=int, default=10)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jmsq-installation-") as directory:
        measure(Path(directory), given.constraints, given.runs)


def measure(work: Path, constraints: str | None, runs: int) -> None:
    environment = work / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    before = used(environment)
    limits = ["-c", str(Path(constraints).resolve())] if constraints else []
    started = time.perf_counter()
    pip(work, "--python", str(python), "install", "--quiet", *limits, str(build(work)))
    print(f"installed in {time.perf_counter() - started:.0f} s: {(used(environment) - before) / MEBIBYTE:.0f} MiB")
    for package, size in largest(environment)[:6]:
        print(f"    {size / MEBIBYTE:5.0f} MiB  {package}")
    for name, command in {
        CONNECT: [python, "-c", CONNECT],
        "jmsq --help": [python.with_name("jmsq"), "--help"],
    }.items():
        seconds = [timed(command, work) for _ in range(runs)]
        print(f"{name}: median {statistics.median(seconds):.2f} s of {runs}, {min(seconds):.2f} to {max(seconds):.2f}")
    first = [float(output([python, "-c", FIRST_MESSAGE, str(work / f"domain-{n}")], work)) for n in range(3)]
    print(f"import, apply, connect, send and receive a first message: {min(first):.2f} s, the best of 3")


def build(work: Path) -> Path:
    """From a copy, because a build leaves files in the tree."""
    source = work / "source"
    source.mkdir()
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / name, source / name)
    pip(work, "wheel", "--quiet", "--no-deps", "-w", str(work / "dist"), str(source))
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def pip(work: Path, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], cwd=work, check=True)


def output(command: list[object], work: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "JMSQ_ROOT")}
    return subprocess.run(
        [str(part) for part in command], cwd=work, env=clean, check=True, capture_output=True, text=True
    ).stdout


def timed(command: list[object], work: Path) -> float:
    started = time.perf_counter()
    output(command, work)
    return time.perf_counter() - started


def used(directory: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in directory.rglob("*"))


def largest(environment: Path) -> list[tuple[str, int]]:
    (packages,) = environment.glob("lib/python*/site-packages")
    sizes = [(path.name, used(path)) for path in packages.iterdir() if path.is_dir()]
    return sorted(sizes, key=lambda item: -item[1])


if __name__ == "__main__":
    main()
