"""C14: what `jmsq` prints: values as JSON and for people, and lines of standard input as messages."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from spark_jms.admin.statistics import DestinationStatistics, Rates, with_rates
from spark_jms.cli.command import Output, cell, clip, human_bytes, human_ms, narrow_table, plain, visible
from spark_jms.cli.messages import _lines, _property


@dataclass(frozen=True)
class Row:
    name: str
    when: datetime


def test_values_as_json() -> None:
    when = datetime(2026, 1, 31, 9, 0, 0, 5000, tzinfo=timezone(timedelta(hours=1)))
    assert plain([Row("a", when), {1: float("nan")}, (float("-inf"), 0.5, None)]) == [
        {"name": "a", "when": "2026-01-31T08:00:00.005Z"},
        {"1": "nan"},
        ["-inf", 0.5, None],
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_shows_what_its_encoding_lacks(encoding: str) -> None:
    """C14: nothing ends the command; widths stay where a character has a stand-in."""
    written = io.BytesIO()
    file = io.TextIOWrapper(written, encoding=encoding)
    out = Output(False, file)
    out.say("Grüße ☃ \udcff")
    out.table("", ("name", "empty", "body"), [("ä", None, clip("a\nb" + "c" * 9, 6)), ("b", 1, "☃")], "")
    Output(True, file).record({"text": "ä☃"})
    shown = written.getvalue().decode(encoding)
    assert (
        shown.splitlines()[0]
        == {
            "ascii": r"Gr\xfc\xdfe \u2603 \udcff",
            "latin-1": r"Grüße \u2603 \udcff",
            "utf-8": r"Grüße ☃ \udcff",
        }[encoding]
    )
    row = next(line for line in shown.splitlines() if "bcc" in line)
    cells = [part for part in row.split() if part != "|"]  # the ruler of a table in ASCII
    assert [part.removeprefix("|") for part in cells[-2:]] == (
        ["–", "a⏎bcc…"] if encoding == "utf-8" else ["-", "a|bcc~"]
    )
    assert json.loads(shown.splitlines()[-1]) == {"text": "ä☃"}


MEMBERS = ("destination", "member", "subscription", "last", "backlog", "claimed", "consumers", "files", "size")


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_narrow_table_breaks_no_header_and_no_number(width: int) -> None:
    """C14: of `jmsq stat --watch`. Columns are left out, then text is cut, but no line wraps."""
    rows = [
        ("orders-of-today", 3, "billing", 1_234_567, 1_234, 10, "client-0123456789ab", 12, "12.8 KiB"),
        ("a", *[None] * 8),
    ]
    shown = io.StringIO()
    console = Console(file=shown, width=width, color_system=None)
    console.print(
        narrow_table("Members", MEMBERS, rows, width, ("size", "files", "last", "claimed", "consumers", "subscription"))
    )
    title, head, rule, *lines = shown.getvalue().splitlines()
    assert (title.strip(), set(rule), len(lines)) == ("Members", {"─"}, 2)
    names = head.split()
    assert set(names) <= set(MEMBERS)
    assert {"destination", "member", "backlog"} <= set(names)
    assert ("last" in names) == ("1,234,567" in lines[0])
    assert "1,234" in lines[0]
    assert max(map(len, (head, *lines))) <= width
    assert len(names) == len(MEMBERS) or width < 100


@given(st.text())
def test_message_cannot_control_the_terminal(text: str) -> None:
    shown = visible(text)
    assert not any(ord(c) < 32 and c not in "\n\t" for c in shown)
    assert not any(0x7F <= ord(c) < 0xA0 for c in shown)
    assert visible(shown) == shown
    assert clip(text, 10).count("\n") == 0
    assert len(clip(text, 10)) <= 10


def test_control_characters_are_escaped() -> None:
    assert visible("a\x1b[31mb\x00\u202e") == "a\\x1b[31mb\\x00\\u202e"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (10 * 2**20, "10.0 MiB"), (2**50, "1024.0 TiB")],
)
def test_sizes(size: int, shown: str) -> None:
    assert human_bytes(size) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [(0, "0"), (250, "250 ms"), (1500, "1500 ms"), (30_000, "30 s"), (86_400_000, "1 d"), (90_000, "90 s")],
)
def test_durations(ms: int, shown: str) -> None:
    assert human_ms(ms) == shown


def test_cells() -> None:
    assert [cell(v) for v in (None, "", True, 1234567, 1234.56, "x")] == ["–", "–", "yes", "1,234,567", "1,234.6", "x"]


def test_tables_print_text_literally() -> None:
    file = io.StringIO()
    Output(False, file).table("", ("a", "b"), [("[red]x[/red] :smile:", 1)], "none")
    assert "[red]x[/red] :smile:" in file.getvalue()
    assert "\x1b" not in file.getvalue()
    Output(False, file).table("", ("a",), [], "there is nothing")
    assert file.getvalue().endswith("there is nothing\n")


def test_json_is_ascii_if_the_output_is_not_unicode() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="latin-1")
    Output(True, file).record({"text": "é€😀"})
    assert json.loads(raw.getvalue()) == {"text": "é€😀"}


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"))), st.booleans(), st.integers(1, 7))
def test_each_line_is_one_message(lines: list[str], ended: bool, step: int) -> None:
    data = "\n".join(lines).encode() + (b"\n" if ended and lines else b"")

    class Slow(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(step)

    got = [message["text"] for part in _lines(Slow(data), {"priority": 1}) for message in part]
    wanted = lines if ended or (lines and lines[-1]) else lines[:-1]
    assert got == wanted


def test_line_that_is_not_text_is_named() -> None:
    parts = _lines(io.BytesIO(b"good\n\xff\xfe\n"), {})
    with pytest.raises(click.UsageError, match="line 2 of standard input is not UTF-8"):
        list(parts)


def test_typed_properties() -> None:
    given = [
        "a=",
        "b=x=y",
        "c:long=-9223372036854775808",
        "d:double=1e3",
        "e:boolean=FALSE",
        "f:byte=-128",
        "g:string=1",
    ]
    assert dict(map(_property, given)) == {
        "a": "",
        "b": "x=y",
        "c": -(2**63),
        "d": 1000.0,
        "e": False,
        "f": -128,
        "g": "1",
    }
    for wrong in ("a", "=1", ":int=1", "a:=1", "a:int=1.5", "a:short=32768", "a:double=x"):
        with pytest.raises(click.BadParameter):
            _property(wrong)


def test_rates() -> None:
    def looked(sent: int) -> DestinationStatistics:
        return DestinationStatistics("d", "queue", 0, 0, 0, 0, 0, sent, 0, 0, [], [])

    assert with_rates(looked(10), None, 1.0).rates is None
    assert with_rates(looked(10), looked(4), 2.0).rates == Rates(3.0, 0.0)


@pytest.mark.parametrize(("total", "shown"), [(None, "1,200"), (2400, "1200/2400")])
def test_progress_shows_a_count_or_a_bar(
    total: int | None, shown: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14: without a total there is no bar that could fill up."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    with Output(as_json=False).progress("sending", total) as progress:
        progress.advance(1200)
    found = capsys.readouterr().err
    assert shown in found
    assert "?" not in re.sub(r"\x1b\[\?25[hl]", "", found)
