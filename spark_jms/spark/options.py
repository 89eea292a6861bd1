"""The options of format("jmsq"), parsed, and how the process of a source on the driver learns of its end.

settings/options.py declares the options; `parse_options` and the checks after it refuse what has no effect.

The process of a source on the driver ends in one of two ways. When the query ends, because it failed or was stopped, Spark
closes the connection and sends SIGTERM, in any order, and Python would die before it has called `stop`. When the driver
dies, the connection ends and no signal comes. `StopSignal` tells the two apart.

A third way has no sign of its own: `spark.stop()` without `query.stop()`. Spark ends a query when a job of it fails, and an idle
query has none, so it continues to ask its source in a JVM without a SparkContext. Only Spark's local directories are gone, which
`SparkContextWatch` sees. They are below /tmp unless `spark.local.dir` says otherwise, and many hosts delete there what no process has
used for ten days: so the source of a running query uses them.

Features: C1, C6, C7, M4 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType, TracebackType
from typing import Any

import attrs
import pyspark

from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.subscriptions import ClientIdentity
from spark_jms.core.messages.columns import COLUMNS
from spark_jms.errors import OptionError, SparkVersionError, TriggerError
from spark_jms.settings.options import FOREIGN_NAMES, FOREIGN_PREFIXES, OPTIONS, Options
from spark_jms.settings.refused import refusal_of
from spark_jms.settings.table import REQUIRED, Setting, hint, read_texts
from spark_jms.settings.types import Text, Use

ACCEPTED = sorted(OPTIONS)
OLDEST_SPARK = (4, 2)

# Spark adds these itself (SQL tables, query names); spark-jms ignores them.
_FROM_SPARK = {
    "queryname",
    "serialization.format",
    "provider",
    "owner",
    "external",
    "location",
    "comment",
    "collation",
    "is_managed_location",
}
_PREFIXES = ("spark.", "fs.", "option.", "asyncprogresstracking")
_SIGNAL_WAIT_S = 5.0  # from the end of the connection to Spark's signal, while the driver lives
_STOP_S = 20  # for `stop` after the signal: a store that hangs must not keep the process
_POLL_S = 0.01
_TOUCH_EVERY_S = 3600.0  # Spark's local directories

# A reader or writer is asked for without options when a table is used: Spark has asked for the schema of anything else.
_TABLE = "CREATE TABLE t USING jmsq OPTIONS (root '…', destination '…')"
_UNKEPT = (
    ". A table keeps its options if it was made by "
    + _TABLE
    + ", and not if it has a list of columns or was made by AS SELECT or "
    "saveAsTable: make it so, or give both at each use, by "
)
_WITHOUT = {
    Use.READ: _UNKEPT + "SELECT … FROM t WITH (root = '…', destination = '…')",
    Use.READ_STREAM: _UNKEPT + 'readStream.option("root", …).option("destination", …).table("t")',
    Use.WRITE: ". Spark does not tell a writer the options of its table, so each write names both: INSERT INTO t WITH (root = '…', "
    'destination = \'…\') …, or .option("root", …).option("destination", …). CREATE TABLE … AS SELECT cannot: '
    + _TABLE
    + " first",
    Use.WRITE_STREAM: ". Spark does not tell a writer the options of its table, so each stream names both, for toTable too: "
    '.option("root", …).option("destination", …)',
}


def check_spark(version: str = pyspark.__version__) -> None:
    """Raises SparkVersionError for a PySpark whose sources have no start offset and no admission control."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST_SPARK:
        raise SparkVersionError(
            f'format("jmsq") needs PySpark {OLDEST_SPARK[0]}.{OLDEST_SPARK[1]} or newer, and {version} runs: an older one does not '
            "tell a source where its query continues. Upgrade it, or use spark_jms.connect(root), which needs no Spark"
        )


def parse_options(given: Mapping[str, str], use: Use | None = None) -> Options:
    """Raises OptionError naming the option, its value and what is accepted. Names are not case-sensitive. `use` None: of any
    use, because Spark asks for the schema before it says what for."""
    texts = _known(given)
    if use is not None:
        _check_use(texts, use)
    for name, row in OPTIONS.items():
        if row.variable and name not in texts and (text := os.environ.get(row.variable)):
            texts[name] = text
        if row.default is REQUIRED and name not in texts:
            otherwise = f" (or the environment variable {row.variable})" if row.variable else ""
            advice = "" if use is None else _WITHOUT[use]
            raise OptionError(f'format("jmsq") needs option("{name}", …){otherwise}{advice}')
    options = Options(**read_texts(Options, texts, _refused))
    return attrs.evolve(options, columns=_columns(options.columns, texts.get("columns")))


def _known(given: Mapping[str, str]) -> dict[str, str]:
    """The options that are ours and not empty, as they are declared. OptionError names all others."""
    known = {name.lower(): name for name in OPTIONS}
    texts = {}
    unknown = []
    for key, text in given.items():
        if key.lower() == "asyncprogresstrackingenabled" and text.lower() == "true":
            raise TriggerError(
                f"{key} writes a query's progress after the next batch was asked for, which is the signal to acknowledge: "
                "leave it out"
            )
        name = known.get(key.lower())
        if name is None and key.lower() not in _FROM_SPARK and not key.lower().startswith(_PREFIXES):
            unknown.append(f"{key!r}{_meant(key)}")
        if name and (text or not isinstance(OPTIONS[name].type, Text)):
            texts[name] = text
    if unknown:
        raise OptionError(f'format("jmsq") has no option {", ".join(unknown)}: accepted are {", ".join(ACCEPTED)}')
    return texts


def _check_use(given: Iterable[str], use: Use) -> None:
    """Raises OptionError for options that would have no effect."""
    idle = [name for name in sorted(given) if use not in OPTIONS[name].used_in]
    if idle:
        each = "; ".join(f"{name} is for {_listed(OPTIONS[name].used_in)}" for name in idle)
        view = (
            ""
            if use in (Use.READ_STREAM, Use.WRITE_STREAM)
            else ". A view has them for SELECT and INSERT: make two views"
        )
        raise OptionError(f"{use.value} does not use option {', '.join(idle)}: leave it out ({each}){view}")


def _listed(uses: Iterable[Use]) -> str:
    return " and ".join(use.value for use in uses)


def _meant(key: str) -> str:
    if (reason := refusal_of(key)) is not None:
        return f" (refused: {reason})"
    folded = key.lower()
    prefixed = (name for prefix, name in FOREIGN_PREFIXES.items() if folded.startswith(prefix))
    foreign = FOREIGN_NAMES.get(folded) or next(prefixed, None)
    return f" (did you mean {foreign!r}?)" if foreign else hint(key, OPTIONS, " (did you mean {!r}?)")


def address_of(options: Options) -> DestinationAddress:
    """What the option destination names. Raises InvalidDestinationError."""
    return DestinationAddress.parse(options.destination)


def identity_of(options: Options) -> ClientIdentity:
    """Raises OptionError."""
    return ClientIdentity(options.client_id, options.client_id_policy)


def browsed_subscription(options: Options) -> str | None:
    """What the subscription is kept as. Without a client id any name that `jmsq subscriptions` shows may be looked at."""
    identity = identity_of(options)
    if options.subscription is None or identity.client_id is None:
        return options.subscription
    return identity.kept(options.subscription)


def check_browsing(options: Options) -> None:
    """Raises OptionError for a narrowing option that the view does not use: to ignore it would show too much."""
    message_rows = options.view in ("messages", "all")
    unused = {
        "subscription": options.subscription if options.view == "all" else None,
        "selector": None if message_rows else options.selector,
        "columns": None if message_rows or options.columns == tuple(COLUMNS) else ",".join(options.columns),
    }
    for name, given in unused.items():
        if given is not None:
            raise OptionError(
                f"option {name} is {given!r}, but the view {options.view!r} does not use it: leave it out"
            )


def check_written(options: Options, columns: Sequence[str]) -> None:
    """Raises OptionError unless a frame has the `columns` that are given, as it has when they are those of a view."""
    if options.columns not in (tuple(COLUMNS), tuple(columns)):
        raise OptionError(
            f"option columns is {','.join(options.columns)!r}, but the columns to write are {','.join(columns)!r}: a write "
            "takes the columns of its DataFrame, so leave it out"
        )


def check_streaming(options: Options) -> None:
    """Raises OptionError for a view that cannot be streamed, and for a sink that is not declared idempotent, when batches shall be
    narrowed."""
    if options.view != "messages":
        raise OptionError(
            f"option view is {options.view!r}, which a streaming read does not have: stream the messages (leave view out) or "
            "'changes', and read the other views with spark.read"
        )
    if options.on_poison == "isolate" and not options.idempotent_sink:
        raise OptionError(
            "option onPoison is 'isolate', which repeats a batch with fewer messages: a sink that does not take each batch "
            "once would get messages twice. If yours does (docs/MESSAGES.md, poison messages), set idempotentSink to true; "
            "else leave onPoison out"
        )


def _refused(row: Setting, text: str, allowed: str) -> OptionError:
    return OptionError(f"option {row.name} is {text!r}, but must be {allowed}")


def _columns(names: tuple[str, ...], text: str | None) -> tuple[str, ...]:
    if text is None:
        return tuple(COLUMNS)
    exact = {name.lower(): name for name in COLUMNS}
    found = dict.fromkeys(exact.get(name.lower()) for name in names)
    if not names or None in found or len(found) < len(names):
        raise OptionError(
            f"option columns is {text!r}, but must be a list of different message columns out of: {', '.join(COLUMNS)}"
        )
    return tuple(name for name in found if name)


# -- the process of a source --------------------------------------------------------------------------------------------


class StopSignal:
    """While it is entered, SIGTERM does not end the process but is noted: the end of the connection ends it, or SIGALRM after
    a while. Outside the main thread, which alone may take signals, none ever arrives."""

    def __init__(self) -> None:
        self.arrived = False
        self._driver = os.getppid()
        self._before: Any = None

    def __enter__(self) -> StopSignal:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before)
        if self.arrived:
            signal.alarm(0)

    def wait(self) -> bool:
        """Whether the signal has come or comes now. False when the driver is dead."""
        deadline_s = time.monotonic() + _SIGNAL_WAIT_S
        while not self.arrived and os.getppid() == self._driver and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        return self.arrived

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self.arrived:
            self.arrived = True
            signal.alarm(_STOP_S)


class SparkContextWatch:
    """Sees that the SparkContext of this process was stopped: Spark deletes its local directories then. Those that are missing
    from the beginning tell nothing. From `start` to `close` nothing else deletes them as unused."""

    def __init__(self, directories: str | None = None) -> None:
        """`directories` None: of the environment, where Spark names them for its Python processes."""
        given = os.environ.get("SPARK_LOCAL_DIRS", "") if directories is None else directories
        self._directories = [one for one in given.split(",") if os.path.isdir(one)]
        self._stop = threading.Event()

    def is_stopped(self) -> bool:
        return bool(self._directories) and not any(os.path.isdir(one) for one in self._directories)

    def start(self, act: Callable[[], object], every_s: float = 1.0) -> None:
        """Call `act` once, in a thread, when the SparkContext was stopped. `close` ends the watch, and it may start again."""
        self._stop = stop = threading.Event()

        def watch() -> None:
            touched_s = -_TOUCH_EVERY_S
            while not stop.wait(every_s):
                if self.is_stopped():
                    act()
                    return
                if (now_s := time.monotonic()) - touched_s >= _TOUCH_EVERY_S:
                    touched_s = now_s
                    self._touch()

        threading.Thread(target=watch, name="jmsq SparkContext", daemon=True).start()

    def _touch(self) -> None:
        for one in self._directories:
            with contextlib.suppress(OSError):
                os.utime(one)

    def close(self) -> None:
        self._stop.set()
