"""The commands of storeadmin, in one table that the parser, `rshelp` and completion read. Pure.

Features: R6 (docs/FEATURES.md)
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from spark_jms.store.errors import CommandUsageError
from spark_jms.store.regions.admin.formats import FORMATS
from spark_jms.store.regions.admin.port import GRAMMAR, SORTS, DaemonSelection
from spark_jms.store.regions.daemon.options import MAX_INT, Option, Words, asks_for_help, parse_words

PROGRAM = "storeadmin"
MAX_REFRESH_SECONDS = 3600
ALL = DaemonSelection("all")


@dataclass(frozen=True)
class Arguments:
    """A checked command line. Fields for which the command has no option have their defaults."""

    command: str
    directory: str = "."
    localindex: int = 0
    daemons: DaemonSelection = ALL
    sort: str = "name"
    format: str = "table"
    force: bool = False
    cancel: bool = False
    expression: str = "*"
    topic: str = ""
    refresh_seconds: int = 2
    once: bool = False


@dataclass(frozen=True)
class Command:
    """`argument` is the one word that the command takes besides options, as in its usage: in brackets when it is optional.
    The help shows an empty line of `description` as a single blank, as the reference does."""

    name: str
    summary: str
    options: tuple[Option, ...]
    argument: str
    description: tuple[str, ...]
    examples: tuple[str, ...]
    attached: bool = True  # it needs an attachment

    @property
    def usage(self) -> str:
        return " ".join([self.name, *self._option_usages(), *([self.argument] if self.argument else [])])

    def _option_usages(self) -> list[str]:
        parts: dict[str, list[str]] = {}
        for option in self.options:
            parts.setdefault(option.group or option.name, []).append(f"{option.name} {option.value}".rstrip())
        required = {option.group or option.name for option in self.options if option.required}
        return ["|".join(part) if key in required else f"[{'|'.join(part)}]" for key, part in parts.items()]


_DIR = Option("-dir", "directoryname", ('Global Directory, relative or absolute. Default: "."',))
_LOCALINDEX = Option(
    "-localindex",
    "num",
    (f"which local daemon, when several are of this node: 0 to {MAX_INT}.", "Default: 0"),
)
_DAEMON_TEXT = (
    "all       all daemons",
    "local     the daemon that storeadmin is attached to",
    "n         the daemon of that number",
    "n[,n]*    the daemons of a comma separated list",
    "n-n       the daemons of a range",
)
_DAEMON = Option("-daemon", GRAMMAR, (*_DAEMON_TEXT, "Default: all"), suggestions=("all", "local"))
_SORT_LSD = Option(
    "-sort",
    "|".join(SORTS),
    (
        "name      by daemon number",
        "time      by startup time, newest to oldest",
        "size      by memory usage, smallest to largest",
        "Default: name",
    ),
    choices=SORTS,
)
_SORT_LSR = Option(
    "-sort",
    "|".join(SORTS),
    (
        "name      by number of the daemon that has the primary copy, then by region name",
        "time      by creation time, newest to oldest",
        "size      by region size, smallest to largest",
        "Default: name",
    ),
    choices=SORTS,
)
_FORMAT = Option(
    "-format",
    "|".join(FORMATS),
    ("table     a table report", "list      a record report", "Default: table"),
    choices=FORMATS,
)
_EXPRESSION_TEXT = (
    '"exp" is a limited regular expression: "*" stands for zero or more of any',
    'character. "A*B*C" matches region names that start with A, have a B in the',
    "middle, and end in C.",
)

COMMANDS = (
    Command(
        "rshelp",
        "display help on RS commands",
        (),
        "[command]",
        (
            'Use "rshelp" to display all available RS commands, with usage and examples,',
            'or "rshelp command" to display the help of one command.',
            "",
            "An attachment to a RS Daemon is not needed.",
        ),
        ("rshelp", "rshelp lsr"),
        attached=False,
    ),
    Command(
        "rsattach",
        "attach to a RS Daemon Cluster",
        (_DIR, _LOCALINDEX),
        "",
        (
            'Use "rsattach" to attach to a local RS Daemon, and with it to its cluster.',
            "",
            "When an rsattach succeeds, the command prompt will",
            "change so that it includes '[RS]'.",
        ),
        ("rsattach", "rsattach -dir /shared/rs_global_dir", "rsattach -dir /shared/rs_global_dir -localindex 1"),
        attached=False,
    ),
    Command(
        "rsdetach",
        "detach from a RS Daemon Cluster",
        (),
        "",
        (
            'Use "rsdetach" to detach from a RS Daemon Cluster.',
            "",
            "When an rsdetach succeeds, the command prompt will",
            "change so that it no longer includes '[RS]'.",
        ),
        ("rsdetach",),
    ),
    Command(
        "lsd",
        "list RS Daemons",
        (_DAEMON, _SORT_LSD, _FORMAT),
        "",
        ('Use "lsd" to monitor RS Daemons: whether they are up, their regions and their', "memory."),
        ("lsd", "lsd -daemon local -format list", "lsd -daemon 0,2 -sort size", "lsd -daemon 1-3 -sort time"),
    ),
    Command(
        "shutdown",
        "shut down RS Daemons",
        (
            Option("-daemon", GRAMMAR, _DAEMON_TEXT, suggestions=("all", "local"), required=True),
            Option(
                "-force",
                "",
                (
                    "shut down at once, at the risk of losing data: open regions are cut off, their",
                    "stores fail and report an error, and nothing is resilvered",
                ),
                group="how",
            ),
            Option(
                "-safe",
                "",
                (
                    "1. refuse when a region of the daemons is open",
                    "2. refuse when the other daemons lack the memory to resilver",
                    "3. let nothing open until all regions are resilvered; wait for memory if needed",
                    "4. shut down",
                    "This is the default. Control-C breaks it off.",
                ),
                group="how",
            ),
            Option("-cancel", "", ("break off a safe shutdown that waits: the daemons stay",), group="how"),
        ),
        "",
        (
            'Use "shutdown" to shut down RS Daemons.',
            "",
            "When the daemon that storeadmin is attached to is among them, storeadmin",
            "detaches.",
        ),
        (
            "shutdown -daemon local",
            "shutdown -daemon 1-2 -safe",
            "shutdown -daemon 1 -cancel",
            "shutdown -daemon all -force",
        ),
    ),
    Command(
        "lsr",
        "list RS Regions",
        (_DAEMON, _SORT_LSR, _FORMAT),
        "[exp]",
        (
            'Use "lsr" to list the regions of a RS Daemon Cluster: those with a copy on one',
            "of the daemons.",
            "",
            *_EXPRESSION_TEXT,
        ),
        ("lsr", "lsr -daemon local -sort size", "lsr -format list billing*"),
    ),
    Command(
        "lsc",
        "list connections of RS Stores",
        (_FORMAT,),
        "[exp]",
        (
            'Use "lsc" to list the stores that are open in a RS Daemon Cluster and their',
            "connections: requests since the store was opened, and objects.",
            "",
            *(line.replace("region names", "store names") for line in _EXPRESSION_TEXT),
        ),
        ("lsc", "lsc -format list billing*"),
    ),
    Command(
        "rmr",
        "remove RS Regions",
        (
            Option(
                "-force",
                "",
                (
                    "also regions that are open; the stores that have them open fail and log an",
                    "error, until the regions, which are LOST now, are removed again",
                ),
            ),
        ),
        "exp",
        (
            'Use "rmr" to delete all copies of regions, primaries and secondaries, unless',
            "they are open.",
            "",
            *_EXPRESSION_TEXT,
        ),
        ("rmr billing_000", "rmr test*", "rmr -force *"),
    ),
    Command(
        "top",
        "watch RS Daemons and Regions",
        (
            Option("-refresh", "seconds", (f"how often to look, 1 to {MAX_REFRESH_SECONDS}. Default: 2",)),
            Option("-once", "", ("show it once and return, for scripts",)),
        ),
        "",
        ('Use "top" to watch a RS Daemon Cluster. Control-C ends it.',),
        ("top", "top -refresh 5", "top -once"),
    ),
    Command("quit", "end the session", (), "", ('Use "quit" to end the session.',), ("quit",), attached=False),
)
BY_NAME = {command.name: command for command in COMMANDS}


# ---- parsing


def split(line: str) -> list[str]:
    """The words of a typed line. Quotes keep blanks together."""
    try:
        return shlex.split(line)
    except ValueError as error:
        raise CommandUsageError(PROGRAM, str(error), "close every quote") from None


def parse(words: Sequence[str], one_shot: bool = False, directory: str = ".") -> Arguments:
    """`words` begin with the command. With `one_shot` a command that needs an attachment also takes the options of
    `rsattach`."""
    command = BY_NAME.get(words[0])
    if command is None:
        raise CommandUsageError(PROGRAM, f"there is no command {words[0]!r}", f"one of {', '.join(BY_NAME)}")
    if asks_for_help(words[1:]):
        return Arguments("rshelp", topic=command.name)
    table, usage = command.options, command.usage
    if one_shot and command.attached:
        table, usage = (_DIR, _LOCALINDEX, *table), one_shot_usage(command)
    found = parse_words(command.name, usage, table, words[1:], 1 if command.argument else 0)
    if command.argument and not command.argument.startswith("[") and not found.arguments:
        raise found.error(f"{command.argument} is required")
    return _arguments(command, found, directory)


def one_shot_usage(command: Command) -> str:
    rest = command.usage.removeprefix(command.name).strip()
    return f"{PROGRAM} {command.name} [-dir directoryname] [-localindex num] {rest}".rstrip()


def _arguments(command: Command, found: Words, directory: str) -> Arguments:
    default = Arguments(command.name)
    argument = found.arguments[0] if found.arguments else ""
    is_expression = command.argument.strip("[]") == "exp"
    if command.argument and found.arguments and not argument:
        raise found.error(f"{command.argument.strip('[]')} is empty")
    if command.name == "rshelp" and argument and argument not in BY_NAME:
        raise found.error(f"there is no command {argument!r}; there are {', '.join(BY_NAME)}")
    try:
        daemons = DaemonSelection.parse(found.text("-daemon", default.daemons.text))
    except ValueError as error:
        raise found.error(f"-daemon: {error}") from None
    return Arguments(
        command=command.name,
        directory=found.text("-dir", directory),
        localindex=found.integer("-localindex", default.localindex, 0, MAX_INT),
        daemons=daemons,
        sort=found.text("-sort", default.sort),
        format=found.text("-format", default.format),
        force=found.flag("-force"),
        cancel=found.flag("-cancel"),
        expression=(argument or default.expression) if is_expression else default.expression,
        topic="" if is_expression else argument,
        refresh_seconds=found.integer("-refresh", default.refresh_seconds, 1, MAX_REFRESH_SECONDS),
        once=found.flag("-once"),
    )


# ---- help


def help_of(command: Command) -> str:
    """The reference's layout, with the options and examples that it leaves out."""
    lines = ["Command:", f"   {command.name}", "Summary:", f"    {command.summary}", "Usage:", f"   {command.usage}"]
    lines += ["Description:", *(line or " " for line in command.description)]
    if command.options:
        lines.append("Options:")
        for option in command.options:
            lines.append(f"   {option.name} {option.value}".rstrip())
            lines += [f"      {line}" for line in option.text]
    lines += ["Examples:", *(f"   {example}" for example in command.examples)]
    return "\n".join(lines) + "\n"


def help_on(topic: str) -> str:
    """The help of one command, or of all, separated by empty lines."""
    return help_of(BY_NAME[topic]) if topic else "\n".join(help_of(command) for command in COMMANDS)


# ---- completion


@dataclass(frozen=True)
class Known:
    """What completion may offer of the cluster; empty when not attached."""

    daemons: tuple[int, ...] = ()
    regions: tuple[str, ...] = ()


def completions(before: Sequence[str], word: str, known: Known) -> list[str]:
    """What may stand where `word` has begun, after the words `before` it."""
    if not before:
        offered = list(BY_NAME)
    elif before[0] not in BY_NAME:
        offered = []
    else:
        offered = _offered(BY_NAME[before[0]], before[1:], known)
    return [each for each in offered if each.startswith(word)]


def _offered(command: Command, before: Sequence[str], known: Known) -> list[str]:
    options = {option.name: option for option in command.options}
    last = options.get(before[-1]) if before else None
    if last is not None and last.value:
        numbers = [str(number) for number in known.daemons] if last.name == "-daemon" else []
        return [*last.choices, *last.suggestions, *numbers]
    given = {options[word].group or word for word in before if word in options}
    offered = [option.name for option in command.options if (option.group or option.name) not in given]
    if command.name == "rshelp" and not before:
        offered += list(BY_NAME)
    if command.argument.strip("[]") == "exp":
        offered += known.regions
    return offered
