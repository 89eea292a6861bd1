"""The first hour of a JMS programmer and of an operator, by README and OPERATING, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.installation import installation
from tests.pages import block, blocks
from tests.walks import Walk

README, OPERATING = "README.md", "docs/OPERATING.md"
ENDLESS = ("jmsq forward", "--watch", "--every")  # the reader ends them with Ctrl-C
ASKING = ("jmsq purge orders", "jmsq drop invoices")
PLACEHOLDERS = (
    "657f648552586e8a",
    "prices/billing",
    "postgresql://db",
    "jmsq redrive failed",
    "east",
)  # a claim, a subscription, a database, an error destination, a server of the reader's

pytestmark = pytest.mark.timeout(900)


def first_messages(walk: Walk) -> str:
    return walk.shell(block(README, "bash", "export JMSQ_ROOT").text)


def literal(page: str, heading: str) -> list[str]:
    """The commands of a chapter that a test can run as they are."""
    commands = [c for one in blocks(page) if one.heading == heading and one.language == "bash" for c in one.commands]
    return [command for command in commands if not any(word in command for word in (*ENDLESS, *PLACEHOLDERS))]


def test_jms_programmer_sends_and_receives(tmp_path: Path) -> None:
    """C11, C14: the README from the clone to the first message of a program, with the client only."""
    walk = Walk.start("JMS programmer", installation(), tmp_path)
    assert "hello" in first_messages(walk)
    walk.reached("first message from the shell")
    program = block(README, "python", "connect(")
    assert walk.run("python", "-c", program.text) == "1 hello\n"
    walk.reached("first message of a program")
    assert "Received 'hello', delivery 1" in walk.run("python", "examples/client_hello.py")


def test_operator_looks_changes_backs_up_and_restores(tmp_path: Path) -> None:
    """C13, C14, C19: every command of OPERATING that needs nothing of the reader's own, in the order of the page."""
    walk = Walk.start("operator", installation(), tmp_path)
    first_messages(walk)
    chapters = {
        name: literal(OPERATING, name) for name in ("Looking", "Changing", "Housekeeping", "Backup and restore")
    }
    assert {name: len(commands) for name, commands in chapters.items()} == {
        "Looking": 9,
        "Changing": 13,
        "Housekeeping": 1,
        "Backup and restore": 3,
    }
    root = "export JMSQ_ROOT=$PWD/messages\n"
    for command in chapters["Looking"]:
        assert walk.shell(root + command)
    walk.reached("looked at everything")
    for command in (*chapters["Backup and restore"], *chapters["Changing"], *chapters["Housekeeping"]):
        walk.shell(root + command + (" --yes" if command in ASKING else ""))
    before, after = (
        json.loads(walk.shell(f"jmsq --root {where} stat orders --json"))["destinations"][0]
        for where in ("messages", "restored")
    )
    assert (before["backlog"], after["backlog"]) == (0, 1000)
    walk.reached("backed up, purged and restored")
