"""The options and environment variables that start a daemon, the options that stop one, and the parser of such options. Pure.

A command line is parsed by a table of options in the style of the replicated store: `-name value`, `-flag`. A
CommandUsageError names the command and the option and carries the usage. `spark_jms/settings/store.py` declares the settings
that come from the environment.

Features: R3, R4, R10, R11 (docs/FEATURES.md)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from spark_jms.settings.store import DaemonSettings, from_variables
from spark_jms.store.errors import CommandUsageError, SettingInvalidError

MAX_INT = 2**31 - 1
HELP = ("-help", "-h", "-?", "--help")
MAX_LOG_FILES = 1000
MAX_LOG_FILE_SIZE_MB = 1 << 20

_INTEGER = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True)
class Option:
    """`value` is the placeholder in the usage, "" for a flag. `choices`, if any, are the only allowed values; completion also
    offers `suggestions`. At most one option of a `group` may be given."""

    name: str  # with its hyphen
    value: str
    text: tuple[str, ...]
    choices: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    required: bool = False
    group: str = ""


@dataclass(frozen=True)
class Words:
    """A parsed command line. Its values are still text."""

    command: str
    usage: str
    options: dict[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()

    def text(self, name: str, default: str) -> str:
        return self.options.get(name, default)

    def flag(self, name: str) -> bool:
        return name in self.options

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        word = self.options.get(name)
        if word is None:
            return default
        if not _INTEGER.fullmatch(word) or not low <= int(word) <= high:
            raise self.error(f"{name} {word!r}, allowed are {low} to {high}")
        return int(word)

    def error(self, reason: str) -> CommandUsageError:
        return CommandUsageError(self.command, reason, self.usage)


@dataclass(frozen=True)
class StartOptions:
    """With `help`, show the help and start nothing; all other values are then defaults."""

    directory: str = "."
    localindex: int = 0
    log_level: int = 2
    log_dir: str = "."
    log_file_size_mb: int = 500
    log_file_max: int = 10
    help: bool = False


@dataclass(frozen=True)
class StopOptions:
    """Safe unless `force`. With `help`, show the help and stop nothing; `cancel` breaks off a stop."""

    directory: str = "."
    localindex: int = 0
    force: bool = False
    cancel: bool = False
    help: bool = False


_DIR = Option(
    "-dir",
    "path",
    (
        "the Global Directory, with its rs_daemons.cfg, exactly as stores and the other daemons name it.",
        'An absolute path is best. Default: "."',
    ),
)


_LOCALINDEX = Option(
    "-localindex",
    "idx",
    (
        "which of the daemons of this machine, modulo their number, when rs_daemons.cfg has several.",
        "For development. Default: 0",
    ),
)


START_TABLE = (
    _DIR,
    _LOCALINDEX,
    Option("-loglevel", "num", ("0 nothing, 1 errors, 2 information, 3 and higher debugging and traces. Default: 2",)),
    Option(
        "-logdir",
        "path",
        ('where log files go; a relative path is relative to logs in the Global Directory. Default: "."',),
    ),
    Option("-logfilesize", "num", ("the most that one log file holds, in MB. Default: 500",)),
    Option("-logfilemax", "num", ("the most log files that are kept. Default: 10",)),
)


STOP_TABLE = (
    _DIR,
    _LOCALINDEX,
    Option(
        "-force",
        "",
        (
            "stop at once, at the risk of losing data: open regions are cut off, their stores fail, and nothing is",
            "resilvered.",
        ),
        group="how",
    ),
    Option(
        "-safe",
        "",
        (
            "refuse while regions of the daemon are open or the others have no memory for its copies; then let",
            "nothing open until all regions are resilvered, waiting for memory if needed; then stop. Control-C breaks it",
            "off. This is the default.",
        ),
        group="how",
    ),
    Option("-cancel", "", ("break off a safe stop that waits: the daemon stays.",), group="how"),
)


def asks_for_help(words: Iterable[str]) -> bool:
    return any(word in HELP for word in words)


def parse_words(
    command: str, usage: str, table: Sequence[Option], words: Sequence[str], max_arguments: int = 0
) -> Words:
    """Options may come before and after arguments, each at most once."""
    known = {option.name: option for option in table}
    options: dict[str, str] = {}
    arguments: list[str] = []
    found = Words(command, usage, options)
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        option = known.get(word)
        if option is None:
            if word.startswith("-") and len(word) > 1:
                raise found.error(f"there is no option {word}; there are {', '.join(known) or 'none'}")
            arguments.append(word)
            continue
        if word in options:
            raise found.error(f"{word} is given twice")
        if option.value:
            if position == len(words) or words[position] in known:
                raise found.error(f"{word} needs a value: {option.value}")
            options[word] = _value(found, option, words[position])
            position += 1
        else:
            options[word] = ""
    _complete(found, table)
    if len(arguments) > max_arguments:
        raise found.error(f"unexpected {arguments[max_arguments]!r}")
    return Words(command, usage, options, tuple(arguments))


def usage(table: Sequence[Option]) -> str:
    """`[-dir path] [-force | -safe]`, without the program's name."""
    parts: list[str] = []
    groups: set[str] = set()
    for option in table:
        if option.group in groups and option.group:
            continue
        groups.add(option.group)
        of_group = [each for each in table if each.group == option.group] if option.group else [option]
        text = " | ".join(f"{each.name} {each.value}".rstrip() for each in of_group)
        parts.append(text if option.required and len(of_group) == 1 else f"[{text}]")
    return " ".join(parts)


def help_text(program: str, table: Sequence[Option]) -> str:
    lines = [f"Usage: {program} {usage(table)}", ""]
    for option in table:
        lines.append(f"  {option.name} {option.value}".rstrip())
        lines += [f"      {line}" for line in option.text]
    lines += ["  -? | -h | -help", "      this help"]
    return "\n".join(lines) + "\n"


def parse_start(words: Sequence[str], program: str = "startRSDaemon") -> StartOptions:
    if asks_for_help(words):
        return StartOptions(help=True)
    found = _found(program, START_TABLE, words)
    default = StartOptions()
    return StartOptions(
        directory=found.text("-dir", default.directory),
        localindex=found.integer("-localindex", default.localindex, 0, MAX_INT),
        log_level=found.integer("-loglevel", default.log_level, 0, MAX_INT),
        log_dir=found.text("-logdir", default.log_dir),
        log_file_size_mb=found.integer("-logfilesize", default.log_file_size_mb, 1, MAX_LOG_FILE_SIZE_MB),
        log_file_max=found.integer("-logfilemax", default.log_file_max, 1, MAX_LOG_FILES),
    )


def parse_stop(words: Sequence[str], program: str = "stopRSDaemon") -> StopOptions:
    if asks_for_help(words):
        return StopOptions(help=True)
    found = _found(program, STOP_TABLE, words)
    default = StopOptions()
    return StopOptions(
        directory=found.text("-dir", default.directory),
        localindex=found.integer("-localindex", default.localindex, 0, MAX_INT),
        force=found.flag("-force"),
        cancel=found.flag("-cancel"),
    )


def from_environment(environment: Mapping[str, str]) -> DaemonSettings:
    """A daemon's settings. SettingInvalidError names the variable, its value and what is allowed."""
    settings: DaemonSettings = from_variables(DaemonSettings, environment)
    if settings.heartbeat_ms * 2 > settings.failure_timeout_ms:
        raise SettingInvalidError(
            "RS_FAILURE_TIMEOUT_MS", f"{settings.failure_timeout_ms:g}", "it must be at least twice RS_HEARTBEAT_MS"
        )
    return settings


def timeouts_of(settings: DaemonSettings) -> str:
    """What all daemons of a cluster must have in common. A primary's lease ends before its secondary may take over only if
    both count the same time."""
    return f"RS_HEARTBEAT_MS={settings.heartbeat_ms:g}, RS_FAILURE_TIMEOUT_MS={settings.failure_timeout_ms:g}"


def _found(program: str, table: Sequence[Option], words: Sequence[str]) -> Words:
    return parse_words(program, f"{program} {usage(table)}", table, words)


def _value(found: Words, option: Option, value: str) -> str:
    if not value:
        raise found.error(f"{option.name} needs a value: {option.value}")
    if option.choices and value not in option.choices:
        raise found.error(f"{option.name} {value!r}, allowed are {', '.join(option.choices)}")
    return value


def _complete(found: Words, table: Sequence[Option]) -> None:
    groups: dict[str, str] = {}
    for option in table:
        if option.required and option.name not in found.options:
            raise found.error(f"{option.name} is required: {option.value}")
        if option.group and option.name in found.options:
            other = groups.setdefault(option.group, option.name)
            if other != option.name:
                raise found.error(f"{other} and {option.name} exclude each other")
