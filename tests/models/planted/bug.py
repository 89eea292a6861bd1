"""A bug to plant, and what has to catch it."""

from __future__ import annotations

from dataclasses import dataclass

REGIONS = "store/regions/"
CORE = REGIONS + "core/"


@dataclass(frozen=True)
class Edit:
    """`old` occurs once in the file, whose path is that in the tree: `store/…`."""

    file: str
    old: str
    new: str


@dataclass(frozen=True)
class Planted:
    """`by`: a pattern for the violation; tests/models/regions/errors.py names the promises. `test`: the test that fails, where the
    simulator cannot see the bug, or shows it too seldom."""

    name: str
    by: str
    edits: tuple[Edit, ...]
    test: str = ""

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


def core(name: str, file: str, by: str, old: str, new: str, test: str = "") -> Planted:
    """In one file of the daemon's core."""
    return Planted(name, by, (Edit(CORE + file, old, new),), test)


def elsewhere(name: str, file: str, by: str, old: str, new: str, test: str = "") -> Planted:
    """In one file of the store."""
    return Planted(name, by, (Edit("store/" + file, old, new),), test)


def by_test(name: str, file: str, test: str, old: str, new: str) -> Planted:
    """In a file that the simulator replaces, as the clock of the system, or where no seed shows the bug."""
    return Planted(name, "", (Edit(REGIONS + file, old, new),), test)


# What a lost or a wrong object may look like, depending on who notices it first.
LOSS = "DURABLE|READS|INTACT|EQUAL|SPACE|WHOLE"
