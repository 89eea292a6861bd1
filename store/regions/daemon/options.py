"""The options that start and stop a daemon.

Features: R3, R4, R11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.store.regions.command_line import MAX_INT, Option, Words, asks_for_help, parse_words

MAX_LOG_FILES = 1000
MAX_LOG_FILE_SIZE_MB = 1 << 20

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


def _found(program: str, table: Sequence[Option], words: Sequence[str]) -> Words:
    return parse_words(program, f"{program} {usage(table)}", table, words)
