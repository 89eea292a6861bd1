"""C14: `jmsq housekeep`, once and until Ctrl-C, and its log."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.admin.services import Rounds
from spark_jms.claims.upkeep import views
from spark_jms.cli import command, services
from spark_jms.cli.log_file import LogFile
from spark_jms.client import ConnectionFactory
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import Jmsq


def test_housekeeping_once(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    for i in range(9):
        jmsq("send", "invoices", "--text", str(i))
    jmsq("receive", "invoices")
    (done,) = js("housekeep", "invoices", "--once")
    assert (done["busy"], done["purged_messages"], done["compacted_files"]) == (False, 1, 8)
    assert [d["destination"] for d in js("housekeep", "--once")] == ["invoices", "orders", "prices"]
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        other = Rounds(opened, store, clean_up=False)
        other.run(["invoices"])
        busy = js("housekeep", "invoices", "--once")[0]
        assert busy["busy"] is True
        assert busy["holder"].startswith(f"process {os.getpid()} of {socket.gethostname()}, since 2")
        shown = " ".join(jmsq("housekeep", "invoices", "--once").stdout.split())
        assert f"another process does it: process {os.getpid()} of" in shown
        other.close()


def test_interrupt_exits_with_130(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "run", interrupted)
    result = jmsq("housekeep", code=130)
    assert result.stderr.strip().splitlines() == ["jmsq: interrupted"]
    error = json.loads(jmsq("housekeep", "--json", code=130).stderr)["error"]
    assert error["type"] == "Interrupted"


COMPRESSING = ConnectionFactory(default_compression_threshold=0)
EXPIRED = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) WARNING (<ExpiredJMSMessage JMSMessageID='ID:[^']+' >\n"
    r" <UserProperties (.*) />\n</ExpiredJMSMessage>)\n"
)


def expired(root: str, count: int, **properties: Any) -> None:
    """A queue with so many messages whose time is over, which the log tells of."""
    queue = {"kind": "queue", "expirationPolicy": "Log", "expirationLoggingPolicy": "%properties%"}
    apply(root, {"destinations": {"late": queue}})
    with connect(root, housekeeping=False, connection_factory=COMPRESSING) as context:
        context.producer("late").send_many(
            [{"text": "x" * 1000, "properties": properties, "time_to_live": 0.001}] * count
        )


@pytest.mark.parametrize("run", [("housekeep", "--once"), ("services", "--once", "--only", "housekeeping")])
def test_expired_messages_are_in_the_log_file(root: str, jmsq: Jmsq, tmp_path: Path, run: tuple[str, ...]) -> None:
    """T6, C11: the text's example, as a client sends it: a long value, a null and an empty one; each entry with its time, and nothing
    that spark-jms has added for a compressed body."""
    expired(root, 2, First="Any string longer than 32 characters", Second=None, Third="")
    file = tmp_path / "expired.log"
    result = jmsq(*run, "--log-file", str(file))
    entries = EXPIRED.findall(file.read_text())
    assert [shown for _, _, shown in entries] == ["First='Any string longer than 32 char ...' Second=null Third=''"] * 2
    assert "ExpiredJMSMessage" not in result.output
    assert not [one for one in logging.getLogger("spark_jms").handlers if isinstance(one, logging.FileHandler)]


def test_expiration_with_a_log_file_is_no_query(
    domain: str, jmsq: Jmsq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6: its entries would be in the logs of Spark's tasks. A later command of the process does not take the file for its own."""
    begun: list[list[str]] = []

    def queries(*given: Any) -> Callable[[], None]:
        begun.append(given[5])
        return lambda: None

    monkeypatch.setattr(services, "_queries", queries)
    monkeypatch.setattr(services, "_run", lambda *_: None)
    for arguments in (("--log-file", str(tmp_path / "expired.log")), ()):
        jmsq("services", "--engine", "spark", *arguments)
    assert begun == [["usage"], ["expiration", "usage"]]


def test_log_file_is_rotated(root: str, jmsq: Jmsq, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: it stays within its bounds, and what is there is not overwritten by the next process."""
    monkeypatch.setattr(command, "LOG_BYTES", 2_000)
    monkeypatch.setattr(command, "LOGS_KEPT", 2)
    file = tmp_path / "expired.log"
    file.write_text("an earlier process\n")
    for _ in range(2):
        expired(root, 20, a="b" * 30)
        jmsq("housekeep", "late", "--once", "--log-file", str(file))
    there = sorted(one.name for one in tmp_path.glob("expired.log*"))
    assert there == ["expired.log", "expired.log.1", "expired.log.2"]
    assert all((tmp_path / name).stat().st_size <= 2_000 for name in there)
    expired(root, 1)
    jmsq("housekeep", "late", "--once", "--log-file", str(tmp_path / "other.log"))
    assert "ExpiredJMSMessage" in (tmp_path / "other.log").read_text()


def test_log_file_that_cannot_be_written_is_named(root: str, domain: str, jmsq: Jmsq, tmp_path: Path) -> None:
    """T6, C14: before anything runs."""
    missing = tmp_path / "no" / "expired.log"
    shown = " ".join(jmsq("housekeep", "--once", "--log-file", str(missing), code=2).stderr.split())
    assert f"{missing} cannot be written: No such file or directory" in shown


def test_full_disk_of_the_log_file_ends_no_command(root: str, jmsq: Jmsq) -> None:
    """T6: it is told once, by name and not by a traceback, and the messages have expired all the same."""
    expired(root, 3, a="b")
    result = jmsq("housekeep", "--once", "--json", "--log-file", "/dev/full")
    assert [one["expired_messages"] for one in json.loads(result.stdout)] == [3]
    (line,) = result.stderr.splitlines()
    assert line.startswith("jmsq: /dev/full cannot be written (No space left on device)")


def test_log_file_that_can_be_written_again_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """T6: once, as what is missing in it ends there."""
    file = LogFile(tmp_path / "expired.log", 1_000, 1)

    def note(text: str) -> None:
        file.handle(logging.LogRecord("spark_jms", logging.WARNING, "", 0, text, (), None))

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(file, "shouldRollover", full)
        for text in ("a", "b"):
            note(text)
    for text in ("c", "d"):
        note(text)
    file.close()
    assert (tmp_path / "expired.log").read_text() == "c\nd\n"
    told = capsys.readouterr().err.splitlines()
    assert [line.removeprefix(f"jmsq: {tmp_path}/expired.log can")[:6] for line in told] == ["not be", " be wr"]
