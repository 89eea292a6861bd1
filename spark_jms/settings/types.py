"""What the value of a setting may be.

Each type reads a value from text (a file, an option, a URI, a variable), checks a Python value, shows a value as a
person would write it, and states what it allows. Reading what it shows gives the same value.

Features: C6 (docs/FEATURES.md)
"""

from __future__ import annotations

import difflib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from datetime import timedelta
from enum import Enum
from typing import Any, ClassVar

import attrs

NUMBER, TEXT, FLAG, LIST, SPAN = (
    frozenset(kinds.split()) for kinds in ("int", "str", "bool", "list", "int float str duration")
)
MAX_WHOLE = 2**63 - 1
NO_LIMIT = -1
_WHOLE = re.compile(r"-?(0|[1-9][0-9]{0,18})\Z")
_SIZE = re.compile(r"\s*([0-9]{1,19}(?:\.[0-9]{1,19})?)\s*([a-z]*)\s*\Z")
_SIZE_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_SHOWN_SIZES = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("GB", 10**9), ("MB", 10**6))
_FLAGS = {"true": True, "yes": True, "false": False, "no": False}
DurationLike = str | timedelta | float

_UNITS_MS = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_DURATION = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([a-z]*)\s*\Z")


class NotAllowed(ValueError):
    """A setting does not take this value; `allowed` tells what it takes. Parsers turn it into their own error."""

    def __init__(self, allowed: str) -> None:
        super().__init__(f"must be {allowed}")
        self.allowed = allowed


class ValueType(ABC):
    """`unit` is that of the Python value. `yaml` are the kinds of YAML scalars that a value may be written as."""

    yaml: ClassVar[frozenset[str]] = TEXT
    unit: str = ""

    @property
    @abstractmethod
    def range(self) -> str:
        """The values allowed, in a few words, for tables."""

    @property
    def allowed(self) -> str:
        """The same for an error message: `X is Y, but must be ALLOWED`."""
        return self.range

    @abstractmethod
    def read(self, written: Any) -> Any:
        """The value of a text. Raises NotAllowed."""

    @abstractmethod
    def fits(self, value: Any) -> bool:
        """Whether a Python value is one of this setting's."""

    def checked(self, value: Any) -> Any:
        """The value itself. Raises NotAllowed."""
        if not self.fits(value):
            raise NotAllowed(self.allowed)
        return value

    def show(self, value: Any) -> str:
        return str(value)

    # -- in a Delta table's metadata: text as it is, everything else as JSON ------------------------------------------
    def store(self, value: Any) -> str:
        return json.dumps(value)

    def load(self, stored: str) -> Any:
        return json.loads(stored)


@attrs.frozen
class Whole(ValueType):
    """A whole number in plain decimal digits: YAML's 010 (eight) and 1:30 (ninety) are traps. With a `scale` the value
    is so many times the number: megabytes are written, bytes are kept, and a Python value may be any part of one."""

    low: int = 0
    high: int = MAX_WHOLE
    unit: str = ""
    scale: int = 1
    yaml: ClassVar[frozenset[str]] = NUMBER

    @property
    def range(self) -> str:
        most = "or more" if self.high == MAX_WHOLE else f"to {self.high:,}"
        return f"{self.low:,} {most}{f' {self.unit}' if self.scale > 1 else ''}"

    @property
    def allowed(self) -> str:
        return f"a whole number of {self.range}"

    def read(self, written: Any) -> int:
        text = str(written).strip()
        if not _WHOLE.match(text) or not self.low <= int(text) <= self.high:
            raise NotAllowed(self.allowed)
        return int(text) * self.scale

    def fits(self, value: Any) -> bool:
        low = self.low if self.scale == 1 else 1
        return type(value) is int and low <= value <= self.high * self.scale

    def show(self, value: Any) -> str:
        return str(value // self.scale)


@attrs.frozen
class Maximum(Whole):
    """A whole number, or -1 for no limit."""

    @property
    def range(self) -> str:
        return f"-1 (no limit) or {super().range}"

    @property
    def allowed(self) -> str:
        return f"-1 for no limit, or a whole number of {super().range}"

    def read(self, written: Any) -> int:
        text = str(written).strip()
        return int(self.checked(int(text) if _WHOLE.match(text) else None))

    def fits(self, value: Any) -> bool:
        return (type(value) is int and value == NO_LIMIT) or super().fits(value)


@attrs.frozen
class Duration(ValueType):
    """Milliseconds, or seconds where `unit` is `s`. The limits are written as durations. `bare` is the unit of a number
    alone, for a setting whose name ends in that unit; for any other a number alone is refused.

    Durations are written by one rule everywhere:

    in text      a number with ms, s, min, h or days: '500 ms', '10 s', '15 minutes', '1 day'. On the command line, in the
                 module file and in options of Spark a number alone is refused (0 is 0 in any unit). Where the name of a
                 setting ends in its unit (`retry_limit_s`, RS_HEARTBEAT_MS), a number alone has that unit.
    in Python    such a text, a timedelta, or a number of seconds

    They are whole milliseconds, rounded; only 0 is 0, since for most settings it means another thing than a short time.
    """

    low: str = "0"
    high: str = ""
    unit: str = "ms"
    bare: str = ""
    yaml: ClassVar[frozenset[str]] = SPAN

    @property
    def range(self) -> str:
        low = parse_duration_ms(self.low)
        if not self.high:
            return f"{show_duration(low)} or more" if low else "any duration"
        return f"{show_duration(low, ',')} to {show_duration(parse_duration_ms(self.high), ',')}"

    @property
    def allowed(self) -> str:
        range = self.range.replace("any", "a")
        alone = f" (a number alone: {self.bare})" if self.bare else ""
        return f"{range}, written with ms, s, min, h or days, such as '30 s'{alone}"

    def read(self, written: Any) -> float:
        try:
            duration_ms = parse_duration_ms(written, self.bare)
        except ValueError:
            raise NotAllowed(self.allowed) from None
        value: float = self.checked(duration_ms if self.unit == "ms" else duration_ms / 1000)
        return value

    def fits(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value:
            return False
        value_ms = value if self.unit == "ms" else value * 1000
        most = parse_duration_ms(self.high) if self.high else MAX_WHOLE
        return bool(parse_duration_ms(self.low) <= value_ms <= most)

    def load(self, stored: str) -> Any:
        value = json.loads(stored)
        if self.unit == "ms" and type(value) is not int:
            raise ValueError(stored)
        return value

    def show(self, value: Any) -> str:
        return show_duration(value if self.unit == "ms" else value * 1000)


@attrs.frozen
class Size(ValueType):
    """Bytes. The limits are written as sizes."""

    low: str = "0"
    high: str = "1 GiB"
    unit: str = "bytes"
    yaml: ClassVar[frozenset[str]] = SPAN - {"duration"}

    @property
    def range(self) -> str:
        return f"{show_size(parse_size(self.low), 'byte')} to {show_size(parse_size(self.high), 'byte')}"

    @property
    def allowed(self) -> str:
        return f"{self.range}, written as a number of bytes or with KB, MB, GB, KiB, MiB or GiB, such as '10 MiB'"

    def read(self, written: Any) -> int:
        try:
            return int(self.checked(parse_size(str(written))))
        except ValueError:
            raise NotAllowed(self.allowed) from None

    def fits(self, value: Any) -> bool:
        return type(value) is int and parse_size(self.low) <= value <= parse_size(self.high)

    def show(self, value: Any) -> str:
        return show_size(value)


@attrs.frozen
class SizeOrNone(Size):
    """Bytes, or -1 for no limit."""

    @property
    def range(self) -> str:
        return f"-1, or {super().range}"

    def read(self, written: Any) -> int:
        return -1 if str(written).strip() == "-1" else super().read(written)

    def fits(self, value: Any) -> bool:
        return (type(value) is int and value == -1) or super().fits(value)


class StoredAsText(ValueType):
    """A value that is its own stored form."""

    def store(self, value: Any) -> str:
        return str(value)

    def load(self, stored: str) -> str:
        return stored


class FullForm(StoredAsText):
    """The text of a value with parts, in its full form."""

    @abstractmethod
    def parsed(self, written: str) -> object:
        """The value, whose str is the full form. Raises NotAllowed."""

    def read(self, written: Any) -> str:
        return str(self.parsed(str(written)))

    def fits(self, value: Any) -> bool:
        try:
            return isinstance(value, str) and self.read(value) == value
        except NotAllowed:
            return False


@attrs.frozen
class Choice(StoredAsText):
    """One word of a few, each with a line of documentation. `fold`: in upper or lower case."""

    words: Mapping[str, str]
    fold: bool = False

    @property
    def range(self) -> str:
        return ", ".join(self.words)

    @property
    def allowed(self) -> str:
        return f"one of {self.range}"

    def read(self, written: Any) -> str:
        word = str(written).lower() if self.fold else str(written)
        if word in self.words:
            return word
        near = near_to(word, self.words)
        raise NotAllowed(f"{self.allowed} (did you mean {near}?)" if near else self.allowed)

    def fits(self, value: Any) -> bool:
        return isinstance(value, str) and value in self.words


@attrs.frozen
class NumberChoice(ValueType):
    """One number of a few, each with a line of documentation."""

    words: Mapping[int, str]
    yaml: ClassVar[frozenset[str]] = NUMBER

    @property
    def range(self) -> str:
        return ", ".join(map(str, self.words))

    @property
    def allowed(self) -> str:
        return f"one of {self.range}"

    def read(self, written: Any) -> int:
        return int(self.checked(int(written) if _WHOLE.match(str(written).strip()) else None))

    def fits(self, value: Any) -> bool:
        return type(value) is int and value in self.words


@attrs.frozen
class Flag(ValueType):
    """True or false."""

    yaml: ClassVar[frozenset[str]] = FLAG
    range: ClassVar[str] = "true or false"

    def read(self, written: Any) -> bool:
        if str(written).lower() not in _FLAGS:
            raise NotAllowed(self.allowed)
        return _FLAGS[str(written).lower()]

    def fits(self, value: Any) -> bool:
        return isinstance(value, bool)

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@attrs.frozen
class Text(StoredAsText):
    """Text that matches the whole `pattern`; with `longest`, 1 to so many printable characters. `range` says so in
    words."""

    range: str = "any text"
    pattern: str = r"(?s).*"
    longest: int = 0

    def read(self, written: Any) -> str:
        return str(self.checked(written))

    def fits(self, value: Any) -> bool:
        if not isinstance(value, str) or (
            self.longest and not (value.isprintable() and 1 <= len(value) <= self.longest)
        ):
            return False
        return re.fullmatch(self.pattern, value, re.ASCII) is not None


@attrs.frozen
class HostPort(Text):
    """A port, or host:port."""

    range: str = "a port, or host:port"

    def fits(self, value: Any) -> bool:
        port = value.rpartition(":")[2] if isinstance(value, str) else ""
        return _WHOLE.match(port) is not None and 1 <= int(port) <= 65_535


@attrs.frozen
class ListOf(ValueType):
    """A tuple of values of one type; `range` describes them. In text they are separated by commas."""

    item: ValueType
    range: str = "a list"
    yaml: ClassVar[frozenset[str]] = LIST

    def read(self, written: Any) -> tuple[Any, ...]:
        try:
            return tuple(self.item.read(part.strip()) for part in str(written).split(",") if part.strip())
        except NotAllowed:
            raise NotAllowed(self.allowed) from None

    def fits(self, value: Any) -> bool:
        return isinstance(value, tuple) and all(map(self.item.fits, value))

    def show(self, value: Any) -> str:
        return ", ".join(map(self.item.show, value))

    def load(self, stored: str) -> tuple[Any, ...]:
        return tuple(json.loads(stored))


@attrs.frozen
class ListOrAll(ListOf):
    """The same, or `all`, which is the list of that word."""

    yaml: ClassVar[frozenset[str]] = LIST | TEXT

    def read(self, written: Any) -> tuple[Any, ...]:
        if written != "all":
            raise NotAllowed(self.allowed)
        return ("all",)


# -- sizes, and misspelt words -----------------------------------------------------------------------------------------
def parse_size(text: str) -> int:
    match = _SIZE.match(text.lower())
    if match is None or match[2] not in _SIZE_UNITS:
        raise ValueError(f"{text!r} is not a size")
    whole, _, part = match[1].partition(".")
    count, rest = divmod(int(whole + part) * _SIZE_UNITS[match[2]], 10 ** len(part))
    if rest:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return count


def show_size(size: int, bare: str = "") -> str:
    """In the largest unit that gives a whole number: `10 MiB`, `1000`."""
    for name, unit in _SHOWN_SIZES:
        if size and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} {bare}{'s' if bare and size != 1 else ''}".rstrip()


def near_to(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one is likely to mean."""
    folded = {each.lower(): each for each in known}
    found = difflib.get_close_matches(word.lower(), list(folded), 1)
    return folded[found[0]] if found else None


# -- durations ---------------------------------------------------------------------------------------------------------
def parse_duration_ms(written: object, bare_unit: str = "") -> int:
    """Milliseconds. A bare number other than 0 needs a `bare_unit`. ValueError says what is accepted."""
    if isinstance(written, timedelta) and written >= timedelta():
        return whole_ms(written / timedelta(milliseconds=1))
    match = None if isinstance(written, bool) else _DURATION.match(str(written).lower())
    if match is None or (match[2] and match[2] not in _UNITS_MS):
        raise ValueError(f"{written!r} is not a duration: write a number and ms, s, min, h or days, such as '30 s'")
    unit = match[2] or bare_unit
    if not unit and float(match[1]):
        raise ValueError(f"{written} has no unit: write {match[1]}s for seconds, or {match[1]} with ms, min, h or days")
    return whole_ms(float(match[1]) * _UNITS_MS[unit or "s"])


def whole_ms(duration_ms: float) -> int:
    """Of a duration, 0 or more."""
    return max(round(duration_ms), 1) if duration_ms else 0


def duration_s(value: DurationLike) -> float:
    """The seconds of a duration given in Python. ValueError says what is accepted."""
    if isinstance(value, str):
        return parse_duration_ms(value) / 1000
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"{value!r} is not a duration: give '30 s', a timedelta, or a number of seconds, 0 or more")
    return float(value)


def show_duration(duration_ms: float, thousands: str = "") -> str:
    """In the largest unit that gives a whole number: `7 days`, `15 min`, `0`. `parse_duration_ms` reads it back."""
    for name, unit_ms in (("days", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if duration_ms and duration_ms % unit_ms == 0:
            count = int(duration_ms // unit_ms)
            return f"{count:{thousands}} {'day' if name == 'days' and count == 1 else name}"
    return f"{round(duration_ms):{thousands}} ms" if duration_ms else "0"


# -- the uses of format("jmsq"), by the names that Spark gives them ----------------------------------------------------
class Use(Enum):
    READ = "read"
    READ_STREAM = "readStream"
    WRITE = "write"
    WRITE_STREAM = "writeStream"


READS = (Use.READ, Use.READ_STREAM)
WRITES = (Use.WRITE, Use.WRITE_STREAM)
ALL = READS + WRITES
