"""How full a daemon's memory is: the log lines about it, and what a store does by its five thresholds.

One line is logged for each 10 % that the use passes, up or down: increment k is reached at exactly k * 10 %. A line is WARNING
when the use is 80 % or more, and INFO below. At trace levels below 3 no line is logged, but the passed increments are remembered.

`spark_jms/settings/store.py` declares the thresholds. A setting applies to all replicated stores,
`store.replicated.SpaceOverloadYellowPercent`, or to one, `store.replicated.<store name>.SpaceOverloadYellowPercent`, which
takes precedence. A leading `weblogic.` is accepted.

Which line of a store a change of the daemon's memory use is worth is this table. The band is the highest whose percentage is
reached (start) or exceeded (yellow, red); "moved" is the distance from the use last logged.

    band before   band now     due
    any           another      one line at the level of the band now; INFO when it went below start
    below start   same         nothing
    any other     same         one line at the level of the band when moved >= SpaceLoggingDeltaPercent

Features: R5, R13 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum

from spark_jms.settings.store import Thresholds
from spark_jms.settings.table import Setting, hint, settings_of
from spark_jms.settings.types import NotAllowed
from spark_jms.store.errors import ResourceAllocationException, SettingInvalidError

INCREMENT_PERCENT = 10
WARNING_PERCENT = 80
TRACE_LEVEL = 3  # the lowest that logs utilization
PREFIX = "store.replicated."
FOREIGN_PREFIX = "weblogic."
_ROWS = settings_of(Thresholds)
SETTINGS = tuple(_ROWS)


class Level(IntEnum):
    """The numbers are those of the logging module."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


@dataclass(frozen=True)
class LogLine:
    """A line for the caller to log."""

    level: Level
    text: str


class Band(IntEnum):
    BELOW_START = 0
    START = 1
    YELLOW = 2
    RED = 3


BAND_LEVEL = {Band.BELOW_START: Level.INFO, Band.START: Level.INFO, Band.YELLOW: Level.WARNING, Band.RED: Level.ERROR}


# -- the thresholds of a store -----------------------------------------------------------------------------------------


def parse_thresholds(settings: Mapping[str, object], store: str) -> Thresholds:
    """The thresholds of the store named `store`, from the environment or a YAML mapping (flat, or nested at the dots).
    Ignores other settings. Raises SettingInvalidError for a misspelt threshold or a bad value of any store."""
    found: dict[tuple[str, str], tuple[str, int]] = {}  # (store or "", setting) -> (name as written, percent)
    for name, value in _flat(settings, ""):
        place = _place(name)
        if place is None:
            continue
        percent = _percent(name, _ROWS[place[1]], value)
        other_name, other = found.setdefault(place, (name, percent))
        if other != percent:
            raise SettingInvalidError(name, str(percent), f"{other_name} says {other}, and both name one setting")
    values = {}
    for setting, row in _ROWS.items():
        entry = found.get((store, setting)) or found.get(("", setting))
        if entry is not None:
            values[row.field] = entry[1]
    return Thresholds(**values)


def _flat(settings: Mapping[str, object], above: str) -> Iterator[tuple[str, object]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _place(name: str) -> tuple[str, str] | None:
    """The store ("" for all) and the setting that a full name means; None when it means something else."""
    own = name.removeprefix(FOREIGN_PREFIX)
    if not own.startswith(PREFIX):
        return None
    store, _, setting = own.removeprefix(PREFIX).rpartition(".")
    if setting in _ROWS:
        return store, setting
    if setting.lower().endswith("percent"):
        meant = hint(setting, _ROWS, " (did you mean {!r}?)")
        raise SettingInvalidError(name, "...", f"there is no {setting!r}; there are {', '.join(SETTINGS)}{meant}")
    return None


def _percent(name: str, row: Setting, value: object) -> int:
    try:
        percent: int = row.type.read(value) if isinstance(value, str) else row.type.checked(value)
    except NotAllowed as error:
        raise SettingInvalidError(name, repr(value), f"it must be {error.allowed}") from None
    return percent


# -- what follows from them --------------------------------------------------------------------------------------------


def maximum_message_size_bytes(thresholds: Thresholds, region_size_bytes: int) -> int:
    return region_size_bytes * thresholds.maximum_message_size_percent // 100


def check_message_size(thresholds: Thresholds, message_bytes: int, region_size_bytes: int) -> None:
    """ResourceAllocationException when a new message is larger than its share of a region."""
    limit = maximum_message_size_bytes(thresholds, region_size_bytes)
    if message_bytes > limit:
        raise ResourceAllocationException(
            f"message of {message_bytes} bytes, at most {limit}: MaximumMessageSizePercent is "
            f"{thresholds.maximum_message_size_percent} of a region of {region_size_bytes} bytes"
        )


def rejects_new_messages(
    thresholds: Thresholds,
    daemon_used_bytes: int,
    daemon_limit_bytes: int,
    store_used_bytes: int,
    store_allocated_bytes: int,
) -> bool:
    """Yellow: the memory of *both* is exceeded, the daemon's, and the store's own regions'. A store with room in its
    regions continues however full the daemon is; so does a full store whose daemon has room."""
    return exceeds_yellow(thresholds, daemon_used_bytes, daemon_limit_bytes) and exceeds_yellow(
        thresholds, store_used_bytes, store_allocated_bytes
    )


def exceeds_yellow(thresholds: Thresholds, used_bytes: int, total_bytes: int) -> bool:
    return _exceeds(used_bytes, total_bytes, thresholds.space_overload_yellow_percent)


def check_new_message(
    thresholds: Thresholds,
    daemon_used_bytes: int,
    daemon_limit_bytes: int,
    store_used_bytes: int,
    store_allocated_bytes: int,
) -> None:
    """ResourceAllocationException when `rejects_new_messages`."""
    usage = (daemon_used_bytes, daemon_limit_bytes, store_used_bytes, store_allocated_bytes)
    if rejects_new_messages(thresholds, *usage):
        raise ResourceAllocationException(
            f"daemon memory is {percent_text(*usage[:2])} % used and the store's regions {percent_text(*usage[2:])} %, "
            f"SpaceOverloadYellowPercent is {thresholds.space_overload_yellow_percent}"
        )


def refuses_open(thresholds: Thresholds, daemon_used_bytes: int, daemon_limit_bytes: int) -> bool:
    """Red: new and migrated stores do not open on this daemon; open stores continue."""
    return _exceeds(daemon_used_bytes, daemon_limit_bytes, thresholds.space_overload_red_percent)


def _exceeds(used: int, total: int, percent: int) -> bool:
    return used * 100 > total * percent


# -- which log line is due ---------------------------------------------------------------------------------------------


def band_of(thresholds: Thresholds, used_bytes: int, limit_bytes: int) -> Band:
    if _exceeds(used_bytes, limit_bytes, thresholds.space_overload_red_percent):
        return Band.RED
    if _exceeds(used_bytes, limit_bytes, thresholds.space_overload_yellow_percent):
        return Band.YELLOW
    if used_bytes * 100 >= limit_bytes * thresholds.space_logging_start_percent:
        return Band.START
    return Band.BELOW_START


class UtilizationLog:
    """Is fed the daemon's memory use at every change, and yields the lines that are due."""

    def __init__(self, limit_bytes: int, trace_level: int) -> None:
        if limit_bytes < 1:
            raise ValueError(f"a limit of {limit_bytes} bytes")
        self._limit_bytes = limit_bytes
        self._speaks = trace_level >= TRACE_LEVEL
        self._increments = 0

    def feed(self, used_bytes: int) -> Iterator[LogLine]:
        """The passed increments are remembered even when the caller does not read the lines."""
        before, now = self._increments, used_bytes * 100 // (self._limit_bytes * INCREMENT_PERCENT)
        self._increments = now
        return self._lines(before, now, used_bytes) if self._speaks else iter(())

    def _lines(self, before: int, now: int, used_bytes: int) -> Iterator[LogLine]:
        warns = used_bytes * 100 >= self._limit_bytes * WARNING_PERCENT
        usage = f"{used_bytes >> 20} of {self._limit_bytes >> 20} MB ({percent_text(used_bytes, self._limit_bytes)} %)"
        passed = range(before + 1, now + 1) if now > before else range(before, now, -1)
        for increment in passed:
            word = "above" if now > before else "below"
            text = f"memory utilization went {word} {increment * INCREMENT_PERCENT} %: {usage}"
            yield LogLine(Level.WARNING if warns else Level.INFO, text)


class SpaceLog:
    """`observe` takes each new memory use of the daemon and returns the log line that is due, or None."""

    def __init__(self, thresholds: Thresholds, store: str) -> None:
        self._thresholds = thresholds
        self._store = store
        self._band = Band.BELOW_START
        self._logged_bytes = 0

    def observe(self, used_bytes: int, limit_bytes: int) -> LogLine | None:
        band = band_of(self._thresholds, used_bytes, limit_bytes)
        moved = abs(used_bytes - self._logged_bytes) * 100
        due = band != self._band or (
            band != Band.BELOW_START and moved >= limit_bytes * self._thresholds.space_logging_delta_percent
        )
        if not due:
            return None
        self._band, self._logged_bytes = band, used_bytes
        return LogLine(BAND_LEVEL[band], self._text(band, used_bytes, limit_bytes))

    def _text(self, band: Band, used_bytes: int, limit_bytes: int) -> str:
        t = self._thresholds
        why = {
            Band.BELOW_START: f"below SpaceLoggingStartPercent={t.space_logging_start_percent}",
            Band.START: f"SpaceLoggingStartPercent={t.space_logging_start_percent}",
            Band.YELLOW: f"above SpaceOverloadYellowPercent={t.space_overload_yellow_percent}: new messages are rejected "
            "while this store's regions are above it too",
            Band.RED: f"above SpaceOverloadRedPercent={t.space_overload_red_percent}: stores do not open here",
        }[band]
        used, limit = used_bytes >> 20, limit_bytes >> 20
        share = percent_text(used_bytes, limit_bytes)
        return f"store {self._store}: daemon memory {used} of {limit} MB used ({share} %), {why}"


def percent_text(used: int, total: int) -> str:
    """Two decimal places, as `storeadmin lsd` shows it."""
    return f"{used * 100 / total:.2f}" if total else "0.00"
