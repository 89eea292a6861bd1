"""storeadmin: commands, sessions, single commands, Python and the keyboard (R6, R4)."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.contract import ConnectionInfo, StoreInfo
from spark_jms.store.errors import (
    CommandUsageError,
    DaemonUnavailableError,
    RegionOpenError,
    ShutdownRefusedError,
    StoreClosedError,
)
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.regions.admin.cli import main, render, watch, worst_first
from spark_jms.store.regions.admin.commands import COMMANDS, Arguments, Known, completions, help_on, parse, split
from spark_jms.store.regions.admin.formats import stores_list, stores_table
from spark_jms.store.regions.admin.port import AdminPort, DaemonInfo, DaemonSelection, RegionInfo
from spark_jms.store.regions.admin.session import (
    HISTORY_FILE,
    AdminSession,
    Surroundings,
    completer_of,
    interact,
    run_lines,
)
from spark_jms.store.testing import FakeCluster
from tests.harness.project import PROJECT

GOLDEN = Path(__file__).parent / "golden"
EST = timezone(timedelta(hours=-5), "EST")
MIB = 1 << 20
NOW_US = 1_392_742_229_000_000


def cluster(limit_mb: int = 100) -> FakeCluster:
    """Three daemons; `open` on 0 and 1, `closed` on 1 and 2, `other` on 2 and 0."""
    daemons = [
        DaemonInfo(
            index,
            "127.0.0.1",
            4545 + index,
            4545 + index,
            limit_mb * MIB,
            up=True,
            reachable=True,
            started_us=NOW_US - 60_000_000,
            now_us=NOW_US,
        )
        for index in range(3)
    ]
    regions = [
        RegionInfo("closed", 10 * MIB, "CLOSED", 1, 1, 2, "", NOW_US, 0),
        RegionInfo("open", 20 * MIB, "OPEN", 2, 0, 1, "store s", NOW_US, MIB),
        RegionInfo("other", 30 * MIB, "CLOSED", 1, 2, 0, "", NOW_US, 0),
    ]
    return FakeCluster(daemons, regions)


class Talk:
    """A session; a call runs one line and returns its output."""

    def __init__(self, fake: FakeCluster) -> None:
        self.stream = io.StringIO()
        self.admin = Admin(attach=fake.attach)
        around = Surroundings(self.stream, self.stream, lambda: NOW_US, EST, watch)
        self.session = AdminSession(self.admin, around)
        self.code = 0

    def __call__(self, line: str) -> str:
        before = self.stream.tell()
        self.code = self.session.run(split(line))
        return self.stream.getvalue()[before:]


# ---- the table of commands


def test_commands_are_those_of_the_reference_and_two_more() -> None:
    """R6: in the order of the reference; lsc and top are ours."""
    names = "rshelp rsattach rsdetach lsd shutdown lsr lsc rmr top quit"
    assert " ".join(command.name for command in COMMANDS) == names


def test_help_matches_the_reference() -> None:
    """R6: byte for byte as far as the reference shows it; examples follow."""
    shown = (
        "Command:\n   rsdetach\nSummary:\n    detach from a RS Daemon Cluster\nUsage:\n   rsdetach\nDescription:\n"
        'Use "rsdetach" to detach from a RS Daemon Cluster.\n \nWhen an rsdetach succeeds, the command prompt will\n'
        "change so that it no longer includes '[RS]'.\n"
    )
    assert help_on("rsdetach") == shown + "Examples:\n   rsdetach\n"


def test_help_covers_every_command() -> None:
    """R6: with usage and examples."""
    assert help_on("") == (GOLDEN / "rshelp.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_examples_in_the_help_parse(command: object) -> None:
    """R6: every example of the help is a valid command line."""
    for example in next(each for each in COMMANDS if each is command).examples:
        assert parse(split(example)).command == split(example)[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("rsattach", Arguments("rsattach", directory=".", localindex=0)),
        ('rsattach -localindex 4 -dir "/a b"', Arguments("rsattach", directory="/a b", localindex=4)),
        ("lsd", Arguments("lsd")),
        (
            "lsd -format list -sort time -daemon 1,2",
            Arguments("lsd", daemons=DaemonSelection("1,2", (1, 2)), sort="time", format="list"),
        ),
        ("lsr A*B*C -sort size", Arguments("lsr", expression="A*B*C", sort="size")),
        ("rmr -force x", Arguments("rmr", expression="x", force=True)),
        ("shutdown -daemon local", Arguments("shutdown", daemons=DaemonSelection("local"))),
        ("shutdown -safe -daemon all", Arguments("shutdown")),
        ("shutdown -force -daemon all", Arguments("shutdown", force=True)),
        ("rshelp lsd", Arguments("rshelp", topic="lsd")),
        ("lsd -help", Arguments("rshelp", topic="lsd")),
        ("top -refresh 7 -once", Arguments("top", refresh_seconds=7, once=True)),
    ],
)
def test_parse_reads_options(line: str, expected: Arguments) -> None:
    """R6: options, their order, their defaults."""
    assert parse(split(line)) == expected


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("ls", "there is no command 'ls'"),
        ("lsd -daemon 3-1", "-daemon: the range 3-1 begins after its end"),
        ("lsd -sort colour", "-sort 'colour', allowed are name, time, size"),
        ("lsd -format xml", "-format 'xml', allowed are table, list"),
        ("lsd everything", "unexpected 'everything'"),
        ("lsr a b", "unexpected 'b'"),
        ("lsr ''", "exp is empty"),
        ("lsr -force", "there is no option -force"),
        ("rmr", "exp is required"),
        ("rmr -force", "exp is required"),
        ("shutdown", "-daemon is required"),
        ("shutdown -daemon all -force -safe", "-force and -safe exclude each other"),
        ("rsattach -localindex -1", "-localindex '-1', allowed are 0 to 2147483647"),
        ("rsattach -dir", "-dir needs a value"),
        ("rsattach -dir ''", "-dir needs a value"),
        ("lsd -dir x", "there is no option -dir"),
        ("rshelp ls", "there is no command 'ls'"),
        ("top -refresh 0", "-refresh '0'"),
        ("lsd 'open quote", "No closing quotation"),
    ],
)
def test_parse_names_the_wrong_word(line: str, reason: str) -> None:
    """R6: with what is allowed."""
    with pytest.raises(CommandUsageError) as caught:
        parse(split(line))
    assert caught.value.reason.startswith(reason)


@given(st.text(max_size=40))
def test_parse_gives_a_command_or_a_usage_error(line: str) -> None:
    """R6: for any line."""
    try:
        words = split(line)
        command = parse(words).command if words else "rshelp"
    except CommandUsageError:
        return
    assert command in {each.name for each in COMMANDS}


# ---- the session


def test_session_attaches_and_detaches() -> None:
    """R6: the prompts and the messages."""
    talk = Talk(cluster())
    assert talk.session.prompt == "storeadmin->"
    assert talk("rsattach -localindex 5") == "INFO:  Attached to Daemon 2 with global dir [.].\n"
    assert talk.session.prompt == "storeadmin:[RS]->"
    assert talk("rsattach").startswith("ERROR: Attached to Daemon 2 with global dir [.]. Use rsdetach first.")
    assert talk("rsdetach") == "INFO:  Detached from Daemon 2 with global dir [.].\n"
    assert talk.session.prompt == "storeadmin->"


@pytest.mark.parametrize("line", ["rsdetach", "lsd", "lsr", "rmr x", "shutdown -daemon all", "top"])
def test_commands_without_an_attachment_fail(line: str) -> None:
    """R6: with a message, and the session continues."""
    talk = Talk(cluster())
    assert talk(line) == "ERROR: Not attached to a Daemon. Use rsattach.\n"
    assert talk.code == 1
    assert talk("rshelp quit").startswith("Command:\n   quit\n")


def test_failed_attach_is_reported() -> None:
    """R6, R18: and the prompt stays the same."""
    talk = Talk(FakeCluster([]))
    assert talk("rsattach -dir /gd").startswith(
        "ERROR: Failed to attach to a Daemon with global dir [/gd]: /gd. No daemon"
    )
    assert (talk.code, talk.session.prompt) == (1, "storeadmin->")


def test_lists_are_selected_and_sorted() -> None:
    """R6: in both formats."""
    talk = Talk(cluster())
    talk("rsattach")
    table = talk("lsd -sort size").splitlines()
    assert table[0] == "Current Time: 2014-02-18 11:50:29 AM EST"
    assert [row.split()[0] for row in table[5:]] == ["001", "002", "000"]
    assert talk("lsd -daemon 1-2 -format list").count("Number of Daemons in Cluster : 3\n") == 2
    assert [row.split()[0] for row in talk("lsr o*").splitlines()[4:]] == ["open", "other"]
    assert talk("lsr -daemon local -format list").count("Region Name") == 2
    assert talk("lsd -daemon 7") == "ERROR: there is no daemon 7, the last is 2\n"
    assert talk.code == 1


def test_rmr_removes_regions() -> None:
    """R6, R18: an open one by force only, and it is lost until it is removed again; the others are removed all the same."""
    talk = Talk(cluster())
    talk("rsattach")
    output = talk("rmr o*").splitlines()
    assert (output[0], talk.code) == ("INFO:  Removed Region other.", 1)
    assert output[1].startswith("ERROR: Region open was not removed: open. Another client has the region open.")
    until = "INFO:  Region open was open: its store fails until Region open is removed again.\n"
    assert talk("rmr -force open") == f"INFO:  Removed Region open.\n{until}"
    assert talk.code == 0
    assert "LOST" in talk("lsr open")
    assert talk("rmr -force open") == "INFO:  Removed Region open.\n"
    assert "LOST" not in talk("lsr open")
    assert talk("rmr nothing") == "ERROR: No Region matches [nothing].\n"


def test_shutdown_of_the_local_daemon_detaches() -> None:
    """R6: and no other shutdown does."""
    talk = Talk(cluster())
    talk("rsattach")
    assert talk("shutdown -daemon 2") == "INFO:  Shut down Daemon 2.\n"
    assert talk.session.prompt == "storeadmin:[RS]->"
    output = talk("shutdown -daemon local -force")
    assert output == "INFO:  Shut down Daemon 0.\nINFO:  Detached from Daemon 0 with global dir [.].\n"
    assert talk.session.prompt == "storeadmin->"


def test_forced_shutdown_names_the_regions_that_are_lost() -> None:
    """R18: those of which no other daemon that is up has a copy; `-safe` loses none."""
    talk = Talk(cluster())
    talk("rsattach")
    regions = talk.session._admin.regions()
    both = [region.name for region in regions if {region.primary, region.secondary} <= {1, 2}]
    assert both
    output = talk("shutdown -daemon 1-2 -force")
    assert [line for line in output.splitlines() if "Lost" in line] == [
        f"INFO:  Lost Region {name}: no other Daemon had a copy." for name in sorted(both)
    ]
    talk = Talk(cluster())
    talk("rsattach")
    assert "Lost" not in talk("shutdown -daemon 1 -force")


def test_safe_shutdown_is_refused() -> None:
    """R4: with open regions, then without memory; nothing changes."""
    talk = Talk(cluster(limit_mb=55))
    talk("rsattach")
    assert talk("shutdown -daemon 1").startswith("ERROR: region open is open. Nothing was shut down.")
    talk("rmr -force open")
    assert talk("shutdown -daemon 0-1") == "INFO:  Shut down Daemon 0.\nINFO:  Shut down Daemon 1.\n" + (
        "INFO:  Detached from Daemon 0 with global dir [.].\n"
    )
    talk = Talk(cluster(limit_mb=35))
    talk("rsattach")
    talk("rmr -force open")
    assert "no room for a copy of region" in talk("shutdown -daemon 2")
    assert talk("lsd").count("DOWN") == 0


def test_session_detaches_from_a_daemon_that_dies() -> None:
    """R10: and reports it."""
    fake = cluster()
    talk = Talk(fake)
    talk("rsattach")
    fake.crash(0)
    output = talk("lsd").splitlines()
    assert output[0].startswith("ERROR: daemon 0. The daemon cannot be reached")
    assert output[1] == "INFO:  Detached from Daemon 0 with global dir [.]."
    assert talk("rsattach") == "INFO:  Attached to Daemon 1 with global dir [.].\n"
    assert "SINGLE" in talk("lsr")


# ---- single commands, scripts and Python


def run_main(fake: FakeCluster, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words, fake.attach)
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_main_runs_a_single_command(capsys: pytest.CaptureFixture[str]) -> None:
    """R6: prints its output and nothing else, and returns an exit code."""
    fake = cluster()
    code, out, err = run_main(
        fake, capsys, "lsd", "-dir", "/gd", "-localindex", "1", "-format", "list", "-daemon", "local"
    )
    assert (code, err) == (0, "")
    assert out.startswith("                              Index : 001\n")
    assert run_main(fake, capsys, "rsattach", "-dir", "/gd")[:2] == (
        0,
        "INFO:  Attached to Daemon 0 with global dir [/gd].\n",
    )
    assert run_main(fake, capsys, "rshelp", "lsr")[:2] == (0, help_on("lsr"))
    assert run_main(fake, capsys, "-help")[0] == 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["lss"], 2, "ERROR: storeadmin: there is no command 'lss'\nUsage: one of"),
        (
            ["lsd", "-format"],
            2,
            "ERROR: lsd: -format needs a value: table|list\nUsage: storeadmin lsd [-dir directoryname]",
        ),
        (["rmr", "none"], 1, "ERROR: No Region matches [none]."),
        (["shutdown", "-daemon", "0"], 1, "ERROR: region open is open."),
        (["lsd", "-daemon", "9"], 1, "ERROR: there is no daemon 9"),
    ],
)
def test_main_returns_exit_codes(words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """R6: 1 when the command failed, 2 when it is no command; the reason is on stderr."""
    found, out, err = run_main(cluster(), capsys, *words)
    assert (found, out) == (code, "")
    assert err.startswith(message)


def test_main_without_a_daemon_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """R18: with the reason on stderr."""
    code, out, err = run_main(FakeCluster([]), capsys, "lsd", "-dir", "/gd")
    assert (code, out) == (1, "")
    assert err.startswith("ERROR: Failed to attach to a Daemon with global dir [/gd]: ")


def test_script_runs_all_its_lines() -> None:
    """R6: the exit code is that of the last failure."""
    talk = Talk(cluster())
    lines = ["rsattach\n", "# a comment\n", "\n", "ls\n", "lsd 'x\n", "rmr none\n", "rsdetach\n", "quit\n", "lsd\n"]
    assert run_lines(talk.session, lines, talk.stream, talk.stream) == 1
    text = talk.stream.getvalue()
    assert text.startswith("storeadmin->rsattach\nINFO:  Attached to Daemon 0 with global dir [.].\nstoreadmin:[RS]->#")
    assert text.endswith("with global dir [.].\nstoreadmin->quit\n")


def test_main_reads_commands_from_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """R6: when stdin is no terminal."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("rsattach\nlsr\n"))
    assert main([], cluster().attach) == 0
    out = capsys.readouterr().out
    assert "storeadmin:[RS]->lsr\nCurrent Time: " in out
    assert out.endswith("storeadmin:[RS]->\n")


def test_admin_works_from_python() -> None:
    """R6: it returns values and raises named errors."""
    fake = cluster()
    with Admin("/gd", 1, attach=fake.attach) as admin:
        assert (admin.local_index, admin.directory) == (1, "/gd")
        assert [info.regions_total for info in admin.daemons()] == [2, 2, 2]
        assert [info.name for info in admin.regions("*e*", daemon="1", sort="size")] == ["closed", "open"]
        removal = admin.remove_regions("*e*")
        assert removal.removed == ("closed", "other")
        assert [(name, type(error)) for name, error in removal.refused] == [("open", RegionOpenError)]
        with pytest.raises(ShutdownRefusedError):
            admin.shutdown("all")
        with pytest.raises(ValueError, match="sort 'x'"):
            admin.daemons(sort="x")
        assert admin.shutdown("0-1", force=True) == (0, 1)
        assert not admin.attached
        with pytest.raises(StoreClosedError):
            admin.daemons()
    with Admin("/gd", attach=fake.attach) as admin:
        fake.crash(2)
        with pytest.raises(DaemonUnavailableError):
            admin.remove_regions("*")
        assert not admin.attached


def test_admin_closes_its_attachment() -> None:
    """R6: at the end of the context and on a second attach, but not when that attach fails."""
    ports: list[AdminPort] = []
    fake = cluster()

    def attach(directory: str, localindex: int) -> AdminPort:
        if directory == "bad":
            raise DaemonUnavailableError(directory)
        ports.append(fake.attach(directory, localindex))
        return ports[-1]

    with Admin("a", attach=attach) as admin:
        admin.attach("b")
        with pytest.raises(DaemonUnavailableError):
            admin.attach("bad")
        assert admin.directory == "b"
        assert [port.closed for port in ports] == [True, False]  # type: ignore[attr-defined]
    assert ports[1].closed  # type: ignore[attr-defined]


# ---- completion and the keyboard


@pytest.mark.parametrize(
    ("before", "word", "expected"),
    [
        ("", "ls", ["lsd", "lsr", "lsc"]),
        ("lsd", "", ["-daemon", "-sort", "-format"]),
        ("lsd -sort time", "-", ["-daemon", "-format"]),
        ("lsd -sort", "", ["name", "time", "size"]),
        ("lsd -daemon", "", ["all", "local", "0", "1"]),
        ("shutdown -force", "-", ["-daemon"]),
        ("rshelp", "rs", ["rshelp", "rsattach", "rsdetach"]),
        ("rmr", "b", ["billing", "b2"]),
        ("rsattach -dir", "", []),
        ("unknown", "", []),
    ],
)
def test_completion_offers_words(before: str, word: str, expected: Sequence[str]) -> None:
    """R6: commands, options that are not given yet, their values, and region names."""
    assert completions(before.split(), word, Known((0, 1), ("billing", "b2", "audit"))) == expected


def test_shell_survives_errors_and_control_c(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """R6: and its history file is readable by the user alone."""
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    around = Surroundings(sys.stdout, sys.stdout, lambda: NOW_US, EST, watch)
    session = AdminSession(Admin(attach=cluster().attach), around)
    with create_pipe_input() as keys:
        keys.send_text("rsattach -dir /gd\rnonsense\rhalf\x03rmr -force open\rquit\r")
        assert interact(session, tmp_path, keys, DummyOutput()) == 0
    out = capsys.readouterr().out
    assert "INFO:  Attached to Daemon 0 with global dir [/gd].\n" in out
    assert "ERROR: storeadmin: there is no command 'nonsense'\n" in out
    assert "INFO:  Removed Region open.\n" in out
    history = tmp_path / HISTORY_FILE
    assert "+rmr -force open" in history.read_text(encoding="utf-8")
    assert history.stat().st_mode & 0o077 == 0


def test_tab_completes_the_current_word() -> None:
    """R6: in its place in the line."""
    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

    talk = Talk(cluster())
    talk("rsattach")
    completer = completer_of(talk.session)

    def offered(text: str) -> list[tuple[str, int]]:
        found = completer.get_completions(Document(text), CompleteEvent(completion_requested=True))
        return [(each.text, each.start_position) for each in found]

    assert offered("rsat") == [("rsattach", -4)]
    assert offered("lsd -daemon ") == [("all", 0), ("local", 0), ("0", 0), ("1", 0), ("2", 0)]
    assert offered("rmr -force o") == [("open", -1), ("other", -1)]


def test_shell_ends_with_its_input(tmp_path: Path) -> None:
    """R6: even with a home directory that cannot be written."""
    from prompt_toolkit.input import create_pipe_input
    from prompt_toolkit.output import DummyOutput

    with create_pipe_input() as keys:
        keys.send_text("\x04")
        assert interact(Talk(cluster()).session, tmp_path / "none", keys, DummyOutput()) == 0


def test_completion_survives_a_dead_daemon() -> None:
    """R6: it then knows no names."""
    fake = cluster()
    talk = Talk(fake)
    assert talk.session.known() == Known()
    talk("rsattach")
    assert talk.session.known() == Known((0, 1, 2), ("closed", "open", "other"))
    fake.crash(0)
    assert talk.session.known() == Known()


# ---- top


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_top_prints_once() -> None:
    """R6: with -once, and when the output is no terminal."""
    fake = cluster()
    talk = Talk(fake)
    talk("rsattach")
    fake.crash(1)
    for line in ("top -once", "top -refresh 9"):
        output = talk(line)
        assert "daemons 2 of 3 up   regions 3" in output
        assert "DOWN" in output
        assert output.index("closed") < output.index("other")


def test_top_repeats_until_control_c() -> None:
    """R6: at the given interval."""
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    around = Surroundings(Terminal(), io.StringIO(), lambda: NOW_US, EST, watch)
    with Admin(".", attach=cluster().attach) as admin:
        watch(admin, Arguments("top", refresh_seconds=5), around, wait)
    assert waits == [5, 5, 5]


def test_top_shows_trouble_first() -> None:
    """R6: and never more than one screen."""
    from rich.console import Console

    regions = [RegionInfo(f"r{n}", 8, "CLOSED", 1, 0, 1, "[x]", NOW_US, n) for n in range(50)]
    regions.append(RegionInfo("zz", 8, "LOST", 1, None, None, "", NOW_US, 0))
    assert worst_first(regions)[0].name == "zz"
    assert worst_first(regions)[1].name == "r49"
    out = io.StringIO()
    Console(file=out, width=160).print(render([], regions, NOW_US, EST))
    assert "and 11 more" in out.getvalue()
    assert "[x]" in out.getvalue()


def test_help_imports_neither_rich_nor_the_client() -> None:
    """R6: so that it starts quickly."""
    program = (
        "import sys; from spark_jms.store.regions.admin import main; main(['rshelp', 'lsd']);"
        "print(sorted({'rich', 'prompt_toolkit', 'asyncio', 'spark_jms.store.regions.admin.cluster'} & set(sys.modules)))"
    )
    project = PROJECT
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ,
    )
    assert done.stdout.endswith("[]\n")


# ---- lsc


def test_lsc_lists_the_connections_of_open_stores() -> None:
    """R14: of all stores, or of those whose name matches; as table or list."""
    counted = ConnectionInfo("messaging.jmsServer.a", 1, 2, 3, 4, 5)
    daemon = DaemonInfo(0, "127.0.0.1", 4545, 4545, 100 * MIB, up=True, reachable=True)
    talk = Talk(FakeCluster([daemon], stores=[StoreInfo("b", 6, ()), StoreInfo("a", 7, (counted,))]))
    talk("rsattach")
    assert talk("lsc") == stores_table(talk.admin.stores())
    assert talk("lsc a*") == stores_table(talk.admin.stores("a"))
    assert talk("lsc -format list b") == stores_list(talk.admin.stores("b"))
    assert [store.name for store in talk.admin.stores()] == ["a", "b"]
