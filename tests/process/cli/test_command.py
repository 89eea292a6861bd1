"""C14: the jmsq command as a process: it starts light, ends quietly with its reader, and releases messages on an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from spark_jms import apply, connect
from spark_jms.claims.upkeep import views
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing import wait_until
from tests.harness.processes import forked
from tests.harness.project import PROJECT

JMSQ = [sys.executable, "-m", "spark_jms.cli"]
LOADED = "import sys, atexit; atexit.register(lambda: print('\\n' + ' '.join(sys.modules), file=sys.stderr))"


@pytest.fixture
def domain(root: str) -> str:
    apply(root, {"destinations": {"orders": {"kind": "queue"}}})
    return root


def modules_after(run: Callable[..., subprocess.CompletedProcess[str]], *arguments: str) -> set[str]:
    """The top-level modules a command has loaded when it ends."""
    code = f"{LOADED}; from spark_jms.cli.__main__ import main; sys.argv[1:] = {list(arguments)!r}; main()"
    done = run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode in (0, 3), done.stderr
    return {name.split(".")[0] for name in done.stderr.rsplit("\n", 2)[-2].split()}


def test_help_loads_nothing_heavy(domain: str) -> None:
    heavy = {"pyarrow", "deltalake", "numpy", "rich", "yaml", "pandas", "pyspark", "lark", "obstore"}
    for arguments in (["--help"], ["--version"], ["receive", "--help"], ["completion", "zsh"]):
        assert not modules_after(subprocess.run, *arguments) & heavy


def test_no_command_loads_pyspark(domain: str) -> None:
    """C14: also the modules that a fork has from its start do not."""
    module = PROJECT / "conf" / "jms-module.yaml"
    for arguments in (
        ["apply", str(module)],
        ["send", "orders", "--text", "a"],
        ["receive", "orders"],
        ["stat"],
        ["browse", "orders"],
        ["housekeep", "--once"],
        ["purge", "orders", "--yes"],
    ):
        assert not modules_after(forked.run, *arguments, "--root", domain) & {"pyspark", "py4j", "delta"}


def test_reader_may_close_the_output(domain: str) -> None:
    with connect(domain, housekeeping=False) as context:
        context.producer("orders").send_many({"text": "x" * 1000} for _ in range(3000))
    for arguments in (
        ["browse", "orders", "--json"],
        ["receive", "orders", "--max", "0"],
    ):
        with subprocess.Popen(
            [*JMSQ, *arguments, "--root", domain], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
            assert process.wait(timeout=30) == 141
    # what was not read was not acknowledged, but for what the pipe had taken
    with connect(domain, housekeeping=False) as context:
        left = sum(1 for _ in context.browser("orders"))
    assert 500 < left <= 3000


def test_interrupted_receive_has_acknowledged_the_printed_messages(domain: str) -> None:
    with connect(domain, housekeeping=False) as context:
        context.producer("orders").send_many({"text": str(i)} for i in range(3))
        command = [*JMSQ, "receive", "orders", "--max", "0", "--timeout", "60s", "--json", "--root", domain]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
            assert process.stdout is not None
            got = [json.loads(process.stdout.readline())["text"] for _ in range(3)]
            wait_until(lambda: not list(context.browser("orders")), what="the printed messages are acknowledged")
            os.kill(process.pid, signal.SIGINT)
            assert process.wait(timeout=30) == 130
            assert process.stderr is not None
            assert json.loads(process.stderr.read())["error"]["type"] == "Interrupted"
    assert got == ["0", "1", "2"]
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        assert views.claims(opened, store, "orders") == []


def test_lines_are_sent_as_they_arrive(domain: str) -> None:
    with (
        connect(domain, housekeeping=False) as context,
        subprocess.Popen([*JMSQ, "send", "orders", "--stdin", "--root", domain], stdin=subprocess.PIPE) as process,
    ):
        assert process.stdin is not None
        for i in range(3):
            process.stdin.write(f"{i}\n".encode())
            process.stdin.flush()
            wait_until(lambda i=i: len(list(context.browser("orders"))) == i + 1, what=f"line {i} was sent")  # type: ignore[misc]
        process.stdin.close()
        assert process.wait(timeout=30) == 0
