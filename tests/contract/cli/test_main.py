"""C14: usage, errors and their exit codes, the root, completion."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_jms.cli import __main__
from spark_jms.cli.__main__ import cli
from spark_jms.settings.document import GROUPS
from tests.harness.domains.commands import MODULE, Jmsq


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["consume", "orders"], "there is no command 'consume': use `jmsq receive`"),
        (["send", "orders"], "one of --text, --file and --stdin"),
        (["send", "orders", "--text", "a", "--stdin"], "one of --text, --file and --stdin"),
        (["send", "orders", "--stdin", "--count", "2"], "--count does not go with --stdin"),
        (["send", "orders", "--text", "a", "--producer-id", "p"], "--producer-id goes with --stdin"),
        (["send", "orders", "--text", "a", "--binary"], "--binary goes with --file"),
        (["send", "orders", "--text", "a", "-p", "color"], "NAME:TYPE=VALUE"),
        (["send", "orders", "--text", "a", "-p", "n:integer=5"], "TYPE one of string, boolean"),
        (["send", "orders", "--text", "a", "-p", "n:int=five"], "'five' is not of type int (property n)"),
        (["send", "orders", "--text", "a", "-p", "n:byte=128"], "'128' is not of type byte"),
        (["send", "orders", "--text", "a", "-p", "n:boolean=1"], "'1' is not of type boolean"),
        (["send", "orders", "--text", "a", "--priority", "10"], "0<=x<=9"),
        (["send", "orders", "--text", "a", "--delay", "soon"], "not a duration"),
        (["send", "orders", "--text", "a", "--time-to-live", "10"], "10 has no unit: write 10s for seconds"),
        (["receive", "orders", "--timeout", "5"], "5 has no unit: write 5s for seconds"),
        (
            ["browse", "orders", "--selector", "a = 1", "--selector=b = 2"],
            "--selector is given twice: it takes one value",
        ),
        (["browse", "prices", "--all", "--subscription", "x"], "use one of the two"),
        (["stat", "--times", "2"], "--times goes with --watch"),
        (["stat", "--watch", "orders"], "a destination goes before --watch"),
        (["stat", "--watch=10ms"], "at least 50 ms"),
        (["purge", "orders", "--acknowledged-only", "--member", "1"], "leave out --member"),
        (["purge", "prices", "--acknowledged-only", "--subscription", "a"], "leave out --member and --subscription"),
        (["claims", "--dry-run"], "--dry-run goes with --release"),
        (["subscriptions", "--dry-run"], "--dry-run goes with --drop"),
        (["nothing"], "No such command 'nothing'"),
        (["list", "--jsn"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(domain: str, jmsq: Jmsq, arguments: list[str], said: str) -> None:
    result = jmsq(*arguments, code=2, input="")
    assert result.stdout == ""
    assert result.stderr.startswith("jmsq: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    error = json.loads(jmsq(*arguments, "--json", code=2, input="").stderr)["error"]
    assert said in error["message"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["send", "nothing", "--text", "a"], "InvalidDestinationError"),
        (["receive", "nothing"], "InvalidDestinationError"),
        (["browse", "nothing", "--all"], "InvalidDestinationError"),
        (["stat", "nothing"], "InvalidDestinationError"),
        (["purge", "nothing", "--yes"], "InvalidDestinationError"),
        (["purge", "orders", "--member", "2", "--yes"], "InvalidDestinationError"),
        (["purge", "orders", "--subscription", "nonsense", "--yes"], "InvalidDestinationError"),
        (["purge", "prices", "--subscription", "nonsense", "--yes"], "InvalidDestinationError"),
        (["purge", "prices", "--subscription", "", "--yes"], "InvalidDestinationError"),
        (["browse", "orders", "--subscription", "nonsense"], "InvalidDestinationError"),
        (["receive", "orders", "--subscription", "nonsense"], "InvalidDestinationError"),
        (["acks", "nothing"], "InvalidDestinationError"),
        (["claims", "nothing"], "InvalidDestinationError"),
        (["housekeep", "nothing", "--once"], "InvalidDestinationError"),
        (["claims", "--release", "abc"], "JmsqError"),
        (["receive", "prices", "--starting-position", "earliest"], "OptionError"),
        (["receive", "orders", "--selector", "color ="], "InvalidSelectorError"),
        (["send", "orders", "--text", "a", "-p", "JMSx=1"], "MessageFormatError"),
        (["apply", "gone.yaml"], "ModuleFileError"),
    ],
)
def test_errors_are_named_and_exit_with_1(domain: str, jmsq: Jmsq, arguments: list[str], kind: str) -> None:
    plain = jmsq(*arguments, code=1)
    assert plain.stdout == ""
    assert plain.stderr.startswith("jmsq: ")
    error = json.loads(jmsq(*arguments, "--json", code=1).stderr)["error"]
    assert error == {"type": kind, "message": plain.stderr.removeprefix("jmsq: ").removesuffix("\n")}


def test_the_root(domain: str, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    missing = run("list")
    assert missing.exit_code == 2
    assert "JMSQ_ROOT" in missing.stderr
    assert run("--root", root, "--json", "list").stdout == run("list", "--json", "--root", root).stdout
    other = run("--root", root, "list", "--root", str(tmp_path / "other"))
    assert other.exit_code == 1
    assert f"{tmp_path}/other is not a spark-jms domain" in other.stderr
    monkeypatch.setenv("JMSQ_ROOT", root)
    assert run("list").exit_code == 0
    assert run("--root", str(tmp_path), "list").exit_code == 1  # what is given wins over the environment


def test_completion(domain: str, root: str, jmsq: Jmsq) -> None:
    for shell in ("zsh", "fish"):
        assert "_JMSQ_COMPLETE" in jmsq("completion", shell).stdout

    def complete(words: str, count: int) -> list[str]:
        environment = {
            "_JMSQ_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            "JMSQ_ROOT": root,
        }
        return CliRunner().invoke(cli, [], env=environment, prog_name="jmsq").stdout.split()

    assert complete("jmsq rec", 1) == ["plain,receive", "plain,recover"]
    assert complete("jmsq browse o", 2) == ["plain,orders"]
    assert complete("jmsq stat ", 2) == ["plain,invoices", "plain,orders", "plain,prices"]
    assert complete(f"jmsq --root {root}/gone browse ", 4) == []


def test_commands_of_other_brokers_lead_to_ours() -> None:
    """C14: each name leads to a command, and none hides one."""
    assert set(__main__.ELSEWHERE.values()) <= set(cli.commands)
    assert not set(__main__.ELSEWHERE) & set(cli.commands)


def test_help_groups_the_commands(jmsq: Jmsq) -> None:
    """C14: by what one wants; each command once, under the heading of its section."""
    shown = jmsq("--help").stdout
    sections = {part.split(":\n")[0]: part for part in shown.split("\n\n") if part.split(":\n")[0] in __main__.SECTIONS}
    assert list(sections) == ["Messages", "Destinations", "Consumers", "Servers", "Domain", "Stores"]
    named = [line.split()[0] for part in sections.values() for line in part.splitlines()[1:] if line[2] != " "]
    assert sorted(named) == sorted(cli.commands)
    assert "receive" in sections["Messages"]
    assert "Commands:" not in shown


@pytest.mark.parametrize("group", ["quota", "server", "store"])
def test_group_alone_prints_its_help(group: str) -> None:
    """C14: as `jmsq` alone does."""
    result = CliRunner().invoke(cli, [group], prog_name="jmsq")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Usage: jmsq {group} [OPTIONS] COMMAND")
    assert "see `" not in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        "list",
        "describe",
        "stat",
        "claims",
        "subscriptions",
        "server list",
        "quota list",
        "acks orders",
        "events orders",
        "explain orders a=1",
        "purge orders --dry-run",
        "upgrade --dry-run",
        "housekeep --once",
        "send orders --text a",
        "browse orders",
        "store check",
        "store lock",
        "store own --dry-run",
        "apply MODULE",
        "pause orders",
        "drop orders --force",
    ],
)
def test_json_names_are_snake_case_or_settings(in_doubt: str, jmsq: Jmsq, tmp_path: Path, command: str) -> None:
    """C14"""
    module = tmp_path / "module.yaml"
    module.write_text(json.dumps({**MODULE, "quotas": {"q": {"messagesMaximum": 9}}}))
    jmsq("apply", str(module))
    jmsq("send", "orders", "--text", "a", "-p", "color=red")
    printed = jmsq(*command.replace("MODULE", str(module)).split(), "--json", input="y").stdout
    settings = {name for group in GROUPS.values() for name in group.settings}
    names = {name for line in printed.splitlines() for name in _names(json.loads(line))}
    assert names
    assert {name for name in names - settings if not re.fullmatch("[a-z0-9_]+", name)} == set()


def _names(document: object) -> set[str]:
    if isinstance(document, dict):
        return set(document).union(*(_names(value) for value in document.values()))
    return set().union(*map(_names, document)) if isinstance(document, list) else set()
