"""docs/CLIENT.md: every piece of code on the right of its tables is run (C11, C14, C6); test_blocks.py runs its programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.cli.__main__ import cli
from spark_jms.client import Completion, Context, Message
from spark_jms.errors import IllegalStateException, InvalidDestinationError
from spark_jms.settings.options import OPTIONS
from spark_jms.spark.options import parse_options
from tests.harness.project import PROJECT

PAGE = (PROJECT / "docs" / "CLIENT.md").read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")
TABLES = PAGE[PAGE.index("## From Jakarta") :]
ROWS = [line.strip("| ").split(" | ") for line in TABLES.splitlines() if line.startswith("| ")]
PAIRS = [(left, right) for left, right in ROWS if right not in ("Python", "spark-jms")]
NAMES = {
    "members",
    "expirationPolicy: Redirect",
    "errorDestination",
    *("text", "body", "JMSXGroupID", "properties"),
}  # of the module file, and columns


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = str(tmp_path_factory.mktemp("page") / "messages")
    spark_jms.apply(root, str(PROJECT / "conf" / "jms-module.yaml"))
    return root


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def run_python(code: str, context: Context) -> None:
    producer = context.producer("orders")
    reply_to = context.create_temporary_queue().name if "reply(" in code else None
    producer.send(text="for this row", properties={"color": "red", "region": "eu.west"}, reply_to=reply_to)
    if "unsubscribe" in code:
        context.consumer("prices", subscription="billing").close()
    names: dict[str, Any] = {"ctx": context, "producer": producer, "spark_jms": spark_jms}
    names |= {"datetime": datetime, "timezone": timezone, "completion": Completion(print, print)}
    if re.search(r"\b(consumer|message)\.", code):
        names["consumer"] = context.consumer("orders", acknowledge="individual")
    if "message." in code:
        messages = iter(names["consumer"])
        names["message"] = next(message for message in messages if message.reply_to == reply_to)
    if "request(" in code:
        names["consumer"] = context.consumer("orders", listener=answer, acknowledge="auto")
    eval(code, names)
    if "consumer" in names:
        names["consumer"].close()


def answer(message: Message) -> None:
    with suppress(IllegalStateException, InvalidDestinationError):  # no reply wanted; what other rows have sent
        message.reply(text="the answer")


def run_command(code: str, root: str) -> None:
    result = CliRunner().invoke(cli, [*code.split()[1:], "--root", root])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=[left for left, _ in PAIRS])
def test_each_line_of_the_tables_is_true(
    left: str, right: str, root: str, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C6, C11, C14"""
    monkeypatch.chdir(PROJECT)
    codes = CODE.findall(right)
    assert codes or right.startswith("not "), "either code that runs, or 'not yet'"
    context.producer("orders").send(text="for the command")
    for code in codes:
        if code.startswith("jmsq "):
            run_command(code, root)
        elif option := re.fullmatch(r'\.option\("(\w+)", "(\w+)"\)', code):
            assert option[1] in OPTIONS
            parse_options({"root": root, "destination": "orders", option[1]: option[2]})
        elif code not in NAMES:
            run_python(code.replace('connect("messages"', f"connect({root!r}"), context)


def test_page_names_what_is_public() -> None:
    """C11: the table of objects."""
    for kind in ("Context", "Producer", "Consumer"):
        (row,) = re.findall(rf"^\| `{kind}` \| (.*) \|$", PAGE, re.MULTILINE)
        named = {code.split("(")[0] for code in CODE.findall(row)}
        public = {name for name in vars(getattr(spark_jms.client, kind)) if not name.startswith("_")}
        assert named == public - {"closed"}
