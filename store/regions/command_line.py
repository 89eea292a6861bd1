"""Parses a command line by a table of options in the style of the replicated store: `-name value`, `-flag`.

Pure. A CommandUsageError names the command and the option and carries the usage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from spark_jms.store.errors import CommandUsageError

MAX_INT = 2**31 - 1
HELP = ("-help", "-h", "-?", "--help")

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
