"""A new user's first steps, timed: a clone, an installation of the wheel, and commands in the clone's directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.installation import PROJECT, Installation, must, seconds_to_install


@dataclass
class Walk:
    """`seconds` counts from `git clone` on, the installation included; another test of the run may have made it."""

    who: str
    installed: Installation
    clone: Path
    seconds: float = field(default=0.0)

    @staticmethod
    def start(who: str, installed: Installation, directory: Path) -> Walk:
        walk = Walk(who, installed, directory / "spark-jms", seconds_to_install(installed))
        started = time.monotonic()
        cloned = subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(walk.clone)], check=False)
        if cloned.returncode != 0:  # the tests run in an unpacked archive, or in another user's clone
            shutil.rmtree(walk.clone, ignore_errors=True)
            shutil.copytree(PROJECT, walk.clone, symlinks=True, ignore=shutil.ignore_patterns(".*", "*.egg-info"))
        walk.seconds += time.monotonic() - started
        return walk

    def shell(self, commands: str) -> str:
        return self.run("bash", "-euc", commands)

    def run(self, *command: str) -> str:
        started = time.monotonic()
        printed = must(self.installed.run(*command, cwd=self.clone, timeout_s=240))
        self.seconds += time.monotonic() - started
        return printed

    def reached(self, what: str) -> None:
        """Printed even when the test passes."""
        print(f"\n{self.who}: {what} {self.seconds:.0f} s after git clone", file=sys.__stderr__)
