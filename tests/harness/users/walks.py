"""A new user's first steps, timed: a clone, an installation of the wheel, and commands in the clone's directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.harness.project import PROJECT
from tests.harness.users.installation import Installation, must, seconds_to_install

# What the README's first block of commands prints; and its program with Spark, of which Spark chooses the five rows.
FIRST_MESSAGES = """
destination detail
─…
orders   created distributed-queue, 4 member(s)
prices   created topic, 1 member(s)
invoices created queue, 1 member(s)
sent ID:… to orders, member 0, sequence 1
sent 1,000 message(s) to orders
Destinations
name     kind              members sent  backlog oldest claimed consumers stored files size headers   version
─…
invoices queue             1       0     0       –      0       0         0      0     0 B  0 B       0
orders   distributed-queue 4       1,001 1,001   …Z     0       0         1,001  5     …    500.5 KiB 2
prices   topic             1       0     0       –      0       0         0      0     0 B  0 B       0
Members
destination member subscription last backlog claimed consumers files size
─…
invoices    0      -            0    0       0       –         0     0 B
orders      0      -            251  251     0       –         2     …
orders      1      -            250  250     0       –         1     …
orders      2      -            250  250     0       –         1     …
orders      3      -            250  250     0       –         1     …
prices      0      –            0    –       –       –         0     0 B
the clock of this host is …
member sequence sent priority group      type properties            delivery body
─…
0      1        …Z   4        customer-7 –    color=red amount=12.5 –        hello
-- member 0  sequence 1  ID:…  group customer-7  color=red  amount=12.5
hello
"""
FIVE_ROWS = """
+------+--------+…+
|member|sequence|…text|
+------+--------+…+
|…|…|…|
|…|…|…|
|…|…|…|
|…|…|…|
|…|…|…|
+------+--------+…+
only showing top 5 rows
"""


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
