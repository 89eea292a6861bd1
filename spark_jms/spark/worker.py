"""Python worker processes of Spark, which outlive their tasks.

PySpark's daemon runs a full garbage collection after each task. With pyspark, pandas and pyarrow loaded, the collector
walks some hundred thousand objects that live as long as the worker, which takes longer than reading a small batch.
Freezing those objects exempts them; the collector still handles whatever later tasks leave behind.

The process of a source on the driver ends in one of two ways. When the query ends, because it failed or was stopped, Spark
closes the connection and sends SIGTERM, in any order, and Python would die before it has called `stop`. When the driver
dies, the connection ends and no signal comes. `StopSignal` tells the two apart.

A third way has no sign of its own: `spark.stop()` without `query.stop()`. Spark ends a query when a job of it fails, and an idle
query has none, so it continues to ask its source in a JVM without a SparkContext. Only Spark's local directories are gone.
They are below /tmp unless `spark.local.dir` says otherwise, and many hosts delete there what nobody has used for ten days: so
the source of a running query uses them.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_SIGNAL_WAIT_S = 5.0  # from the end of the connection to Spark's signal, while the driver lives
_STOP_S = 20  # for `stop` after the signal: a store that hangs must not keep the process
_POLL_S = 0.01
_TOUCH_EVERY_S = 3600.0


@functools.cache
def freeze_loaded() -> None:
    """Call at the end of a task. The first call, when all modules are loaded, freezes; later calls do nothing."""
    gc.freeze()


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
