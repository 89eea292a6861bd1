"""Several machines on one: each has its own network, name, and processes (kernel namespaces), and all share files, as on
NFS. A test can cut a machine's network, or power it off with everything that runs on it. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from spark_jms.testing.domain import wait_until
from tests.harness.project import PROJECT

NETWORK = "10.87.0"
SPACES = ("--net", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")


def why_not() -> str:
    """Why this machine cannot be several; "" when it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "needs root on Linux, for namespaces"
    if missing := [tool for tool in ("unshare", "nsenter", "ip") if shutil.which(tool) is None]:
        return f"needs {', '.join(missing)}"
    tried = subprocess.run(
        ["unshare", *SPACES, "ip", "link", "add", "name", "switch", "type", "bridge"], capture_output=True, text=True
    )
    return tried.stderr.strip()


class Machine:
    def __init__(self, number: int, switch: int) -> None:
        self.number = number
        self.address = f"{NETWORK}.{number + 1}"
        self._switch = switch
        self._holder = subprocess.Popen(["unshare", *SPACES, "sleep", "infinity"], start_new_session=True)
        wait_until(lambda: bool(_children(self._holder.pid)), 10.0)
        self._first = _children(self._holder.pid)[0]
        wait_until(lambda: Path(f"/proc/{self._first}/comm").read_text().strip() == "sleep", 10.0)
        cable = f"m{number}"
        _in_network(switch, "link", "add", "name", cable, "type", "veth", "peer", "name", "eth0", "netns", self._first)
        _in_network(switch, "link", "set", cable, "master", "switch", "up")
        for words in (
            ("addr", "add", f"{self.address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            _in_network(self._first, *words)
        _run("nsenter", "-t", self._first, "-u", "hostname", f"machine{number}")

    def command(self, words: Sequence[object]) -> list[str]:
        """The command that runs these words on this machine."""
        return ["nsenter", "-t", str(self._first), "-n", "-u", "-p", "-m", *map(str, words)]

    def start(self, words: Sequence[object], environment: dict[str, str], out: Path) -> subprocess.Popen[bytes]:
        with open(out, "ab") as file:
            return subprocess.Popen(
                self.command(words),
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **environment},
            )

    def plug(self, connected: bool) -> None:
        """Connects or cuts the network cable."""
        state = "up" if connected else "down"
        _in_network(self._switch, "link", "set", f"m{self.number}", state)

    def use_hosts(self, file: Path) -> None:
        """This file instead of /etc/hosts, on this machine alone."""
        _run("nsenter", "-t", self._first, "-m", "mount", "--bind", file, "/etc/hosts")

    def power_off(self) -> None:
        """Ends all its processes at once. Their connections are not closed; they stop answering."""
        self.plug(False)
        self._holder.kill()
        self._holder.wait()


class Machines:
    def __init__(self, count: int) -> None:
        self._holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
        wait_until(lambda: Path(f"/proc/{self._holder.pid}/comm").read_text().strip() == "sleep", 10.0)
        self.all: list[Machine] = []
        try:
            _in_network(self._holder.pid, "link", "add", "name", "switch", "type", "bridge")
            _in_network(self._holder.pid, "link", "set", "switch", "up")
            for number in range(count):
                self.all.append(Machine(number, self._holder.pid))
        except BaseException:
            self.close()
            raise

    def __getitem__(self, number: int) -> Machine:
        return self.all[number]

    def close(self) -> None:
        for machine in self.all:
            with contextlib.suppress(subprocess.CalledProcessError):
                machine.power_off()
        self._holder.kill()
        self._holder.wait()


def kill(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    """Kills the children that nsenter has started, and nsenter. A second call does nothing."""
    if process.poll() is not None:
        return
    for child in _children(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    process.kill()
    process.wait()


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _in_network(pid: int, *words: object) -> None:
    """Runs `ip` in the network of this process."""
    _run("nsenter", "-t", pid, "-n", "ip", *words)


def _run(*words: object) -> None:
    deadline_s = time.monotonic() + 10.0
    while True:
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{words}: {done.stderr}")
        time.sleep(0.05)
