"""`jmsq changes` (C14, M12)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.cli.__main__ import cli
from spark_jms.cli.changes import changes
from spark_jms.core.changes.change import ALL_KINDS
from spark_jms.testing import memory_domain
from tests.harness.messages.shorthands import send_texts, texts_now


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", empty="queue") as made:
        with connect(made, housekeeping=False) as context:
            send_texts(context, "a", "b", "c")
            with context.consumer("orders") as consumer:
                assert None not in texts_now(consumer, 2)
        yield made


def run(*words: str) -> list[str]:
    done = CliRunner().invoke(cli, ["changes", *words])
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_people_see_a_table(root: str) -> None:
    """M12: of one destination or of all; the newest rows."""
    shown = "\n".join(run("--root", root))
    assert "Changes of all destinations" in shown
    assert shown.count("finished") == 2
    assert shown.count("sent") == 1
    assert "finished" not in "\n".join(run("--root", root, "orders", "--kind", "sent"))
    assert "sent" not in "\n".join(run("--root", root, "orders", "--limit", "2"))
    assert run("--root", root, "empty") == run("--root", root, "--since", "latest") == ["nothing has happened"]


def test_scripts_continue_from_a_position(root: str) -> None:
    """M12: a row a line, then the position."""
    lines = [json.loads(line) for line in run("--root", root, "orders", "--json")]
    rows, position = lines[:-1], lines[-1]["position"]
    assert [(row["kind"], row["messages"], row["ranges"]) for row in rows] == [
        ("sent", 3, [[1, 3]]),
        ("finished", 1, [[1, 1]]),
        ("finished", 1, [[2, 2]]),
    ]
    (again,) = run("--root", root, "orders", "--json", "--since", json.dumps(position))
    assert json.loads(again)["position"]["t"] == position["t"]
    refused = CliRunner().invoke(cli, ["changes", "--root", root, "--since", "yesterday"])
    assert refused.exit_code == 1
    assert "a position of the change feed cannot be read" in refused.output


def test_follow_shows_what_happens(root: str) -> None:
    """M12: from now on, until it is interrupted."""
    program = [
        sys.executable,
        "-m",
        "spark_jms.cli",
        "changes",
        "--root",
        root,
        "--follow",
        "--json",
        "--every",
        "100ms",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            first = json.loads(child.stdout.readline())
            assert "position" in first
            with connect(root, housekeeping=False) as context:
                send_texts(context, "d")
            row, position = (json.loads(child.stdout.readline()) for _ in range(2))
            assert (row["kind"], row["first"], row["last"]) == ("sent", 4, 4)
            assert position["position"] != first["position"]
        finally:
            child.terminate()


def test_kinds_of_the_option_are_those_of_the_feed() -> None:
    """M12: the command names them without importing the feed."""
    (option,) = (one for one in changes.params if one.name == "kinds")
    assert tuple(option.type.choices) == ALL_KINDS  # type: ignore[attr-defined]
