"""The code blocks of the documentation that need no Spark run as they stand, and print what the pages show."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

import spark_jms
from spark_jms.module import load_module
from spark_jms.testing import wait_until
from tests.harness.processes.forked import Popen, run
from tests.harness.project import PROJECT
from tests.harness.users.page_blocks import commands, runnable
from tests.harness.users.pages import Block, blocks, lines, prints_what_is_promised

LIMIT_S = 240
ADMIN = [block.text for block in blocks("docs/ADMIN.md") if block.language == "python"]
QUOTA = """
from spark_jms import apply
apply("messages", {"quotas": {"small": {"messagesMaximum": 100}}, "destinations": {"jobs": {"kind": "queue", "quota": "small"}}})
"""
# A program that runs before a block: what the page has shown above it.
BEFORE: Mapping[tuple[str, str], str] = {
    ("docs/ADMIN.md", "print(admin.destinations())"): ADMIN[0],
    ("docs/ADMIN.md", 'admin.pause("orders"'): ADMIN[0],
    ("docs/LIMITS.md", "jmsq quota history"): QUOTA,
    ("docs/WEBHDFS.md", "fsspec.filesystem"): "import fsspec\n"
    "fs = fsspec.filesystem('webhdfs', host='localhost', port=9870, user='me')\n"
    "fs.pipe_file('/results.csv', b'')\n",
}
PYTHON = list(runnable("python"))
SHELL = [block for block in runnable("bash") if commands(block)]
MODULES = list(runnable("yaml"))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    spark_jms.apply(tmp_path / "messages", PROJECT / "conf" / "jms-module.yaml")
    return tmp_path


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PYTHONPATH": str(PROJECT), "PATH": path, "JMSQ_ROOT": "messages"}


def done(command: list[str], directory: Path) -> str:
    """What it prints."""
    ended = run(command, timeout=LIMIT_S, cwd=directory, env=environment(), capture_output=True, text=True)
    assert ended.returncode == 0, f"{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    return str(ended.stdout)


def before(block: Block) -> str:
    return "".join(
        program + "\n" for (page, text), program in BEFORE.items() if page == block.page and text in block.text
    )


def listens(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def services(block: Block, directory: Path) -> Iterator[None]:
    """What the page has told the reader to start."""
    if block.page == "docs/REPLICATED-STORE.md":
        up = "jmsq store up --daemons 2 --memory 64M --webhdfs 0"
        subprocess.run(["bash", "-euc", up], cwd=directory, env=environment(), check=True, capture_output=True)
        try:
            yield
        finally:
            down = ["bash", "-euc", "jmsq store down --force"]
            subprocess.run(down, cwd=directory, env=environment(), check=False, capture_output=True)
    elif block.page == "docs/WEBHDFS.md":
        (command,) = (c for b in blocks(block.page) for c in b.commands if c.endswith("webhdfs --memory --port 9870"))
        with Popen[str]([sys.executable, *command.split()[1:]], cwd=directory, env=environment()) as door:
            try:
                wait_until(lambda: listens(9870), 60)
                yield
            finally:
                door.terminate()
    else:
        yield


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, directory: Path) -> None:
    """C11, C14, C15, M1, M7, T11: as a program of its own."""
    first = before(block)
    marker = "\nprint('-- and then')\n" if first else ""
    program = directory / "program.py"
    program.write_text(first + marker + block.text, encoding="utf-8")
    with services(block, directory):
        printed = done([sys.executable, str(program)], directory).rpartition("-- and then\n")[2]
    assert prints_what_is_promised(printed, block.prints or ""), printed


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell(block: Block, directory: Path) -> None:
    """C14: one command after the other in one shell; it stops at the first that fails."""
    for name in ("conf", "examples"):
        (directory / name).symlink_to(PROJECT / name)
    if before(block):
        done([sys.executable, "-c", before(block)], directory)
    with services(block, directory):
        script = "\n".join(commands(block))
        ended = subprocess.run(
            ["bash", "-euc", script],
            cwd=directory,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    assert ended.returncode == 0, f"{script}\n{ended.stdout[-2000:]}\n{ended.stderr[-4000:]}"
    assert lines(ended.stdout) != []
    assert block.prints is None or prints_what_is_promised(ended.stdout, block.prints)


@pytest.mark.parametrize("block", MODULES, ids=str)
def test_module_files(block: Block, directory: Path) -> None:
    """C6: a module file, or a part of one, is applied to a new domain; one that names stores of the reader's is read."""
    module = directory / "module.yaml"
    module.write_text("\n".join([*missing_parts(block.text), block.text]), encoding="utf-8")
    if re.search("jdbc:|replicated:", block.text):
        assert load_module(module).destinations
    else:
        assert spark_jms.apply(directory / "new", module) != []


def missing_parts(text: str) -> Iterator[str]:
    """Of a module file, of which a page shows a part."""
    if "destinations:" not in text:
        yield "destinations: {orders: {kind: queue}}"
    if "servers: [" in text and not text.startswith("servers:"):
        yield "servers: {east: {store: file}, west: {store: file}, here: {store: file}}"
