"""The log files of a daemon: `rs_daemon_ddd_xxx.xxx.xxx.xxx_ppppp_nnn.log`, the newest always 000.

    ddd    the daemon's number in rs_daemons.cfg, three digits
    xxx    its IP address, as numbers are written (a zero-filled 010 would be read as octal)
    ppppp  its port, five digits
    nnn    the file's number, three digits: the daemon writes to 000; a rotation adds one to each, and deletes the file
           that would get -logfilemax

The files are in `logs` of the Global Directory: the reference names both `log` and `logs`, and its table of locations,
which administrators use, has `logs`. A relative -logdir is relative to that, `.` by default.

-loglevel: 0 nothing; 1 errors; 2 (default) also warnings and information; 3 also debugging; above 3 also traces.
Start-up messages also go to stdout, and to the file at every level but 0.

Features: R5 (docs/FEATURES.md)
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Full, Queue
from typing import TextIO

from spark_jms.store.errors import SettingInvalidError
from spark_jms.store.regions.core.memory_use import TRACE_LEVEL, Level, LogLine, UtilizationLog

__all__ = [
    "TRACE",
    "DaemonLog",
    "Level",
    "LogLine",
    "LogSettings",
    "LogStatistics",
    "UtilizationLog",
    "log_directory",
    "log_file_name",
    "threshold_of",
]

TRACE = 5  # below logging.DEBUG
DEFAULT_LEVEL = 2
DEFAULT_FILE_SIZE_MB = 500
DEFAULT_FILE_MAX = 10
MAX_FILE_MAX = 1000  # a file number has three digits
MAX_FILE_SIZE_MB = 1 << 20
LOGS = "logs"
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


@dataclass(frozen=True)
class LogSettings:
    """The options -loglevel, -logfilesize and -logfilemax of a daemon."""

    level: int = DEFAULT_LEVEL
    file_size_mb: int = DEFAULT_FILE_SIZE_MB
    file_max: int = DEFAULT_FILE_MAX

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("loglevel", self.level, 0, 2**31 - 1),
            ("logfilesize", self.file_size_mb, 1, MAX_FILE_SIZE_MB),
            ("logfilemax", self.file_max, 1, MAX_FILE_MAX),
        ):
            if not low <= value <= high:
                raise SettingInvalidError(name, str(value), f"allowed are {low} to {high}")


BACKGROUND_LINES = 10_000
BACKGROUND_END_S = 2.0


@dataclass(frozen=True)
class LogStatistics:
    lines: int
    rotations: int
    lost_lines: int  # that the disk refused


def log_directory(global_directory: str, logdir: str = ".") -> Path:
    return Path(os.path.normpath(os.path.join(global_directory, LOGS, logdir)))


def log_file_name(daemon: int, ip: str, port: int, number: int) -> str:
    return f"rs_daemon_{daemon:03d}_{ip}_{port:05d}_{number:03d}.log"


def threshold_of(level: int) -> int:
    """The lowest level of the standard library that this -loglevel logs."""
    if level >= TRACE_LEVEL:
        return logging.DEBUG if level == TRACE_LEVEL else TRACE
    return {0: logging.CRITICAL + 1, 1: logging.ERROR, 2: logging.INFO}[level]


class _Formatter(logging.Formatter):
    """Indents the further lines of a message, so that no message can imitate a record."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", " ").replace("\n", "\n    ")


class DaemonLog(logging.Handler):
    """Writes each line to file 000 with one system call, and rotates *before* the line that would exceed the maximum; only
    a single line larger than that makes a larger file. When the disk refuses lines, they are lost and the daemon runs on;
    the log and `statistics` report how many once the disk takes lines again. One process per daemon may write.

    The files may lie in the Global Directory. A daemon writes them in the background: while the directory hangs, lines wait,
    and above BACKGROUND_LINES they are lost."""

    def __init__(
        self,
        directory: Path,
        daemon: int,
        ip: str,
        port: int,
        settings: LogSettings,
        stdout: TextIO | None = None,
    ) -> None:
        super().__init__(threshold_of(settings.level))
        self.setFormatter(_Formatter())
        self.directory = directory
        self._place = (daemon, ip, port)
        self._settings = settings
        self._max_bytes = settings.file_size_mb << 20
        self._stdout = stdout
        self._fd = -1
        self._size = 0
        self._lines = self._rotations = self._lost = self._lost_untold = 0
        self._queue: Queue[logging.LogRecord | None] | None = None
        self._writer: threading.Thread | None = None
        self.logger = logging.Logger(
            f"rs_daemon_{daemon:03d}", self.level
        )  # not registered, so no other logger receives its records
        self.logger.addHandler(self)
        if settings.level > 0:
            directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            self._delete_from(settings.file_max)
            self._open()

    def path(self, number: int = 0) -> Path:
        return self.directory / log_file_name(*self._place, number)

    def bootstrap(self, message: str, level: int = logging.INFO) -> None:
        """Writes to stdout and, at every level but 0, to the file."""
        record = self.logger.makeRecord(self.logger.name, level, "", 0, message, (), None)
        print(message, file=self._stdout or sys.stdout, flush=True)
        with self.lock or contextlib.nullcontext():
            self.emit(record)

    def log_line(self, line: LogLine) -> None:
        self.logger.log(int(line.level), "%s", line.text)

    def emit(self, record: logging.LogRecord) -> None:
        if self._settings.level == 0:
            return
        if self._queue is None:
            self._emit_now(record)
            return
        record.msg, record.args = record.getMessage(), None
        try:
            self._queue.put_nowait(record)
        except Full:
            self._lost += 1
            self._lost_untold += 1

    # ---- in the background

    def begin_background(self) -> None:
        queue: Queue[logging.LogRecord | None] = Queue(BACKGROUND_LINES)
        self._queue = queue
        self._writer = threading.Thread(target=self._write_queue, args=(queue,), name="regions-log", daemon=True)
        self._writer.start()

    def end_background(self) -> None:
        """Waits BACKGROUND_END_S for the lines that are left."""
        queue, self._queue = self._queue, None
        if queue is not None and self._writer is not None:
            with contextlib.suppress(Full):
                queue.put_nowait(None)
            self._writer.join(BACKGROUND_END_S)

    def _write_queue(self, queue: Queue[logging.LogRecord | None]) -> None:
        while (record := queue.get()) is not None:
            self._emit_now(record)

    def _emit_now(self, record: logging.LogRecord) -> None:
        data = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
        try:
            self._write(data)
        except OSError:
            self._lost += 1
            self._lost_untold += 1

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            self._open()
        if self._size and self._size + len(data) > self._max_bytes:
            self._rotate()
        if self._lost_untold:
            self._append(f"    ({self._lost_untold} lines before this one were lost: the disk refused them)\n".encode())
            self._lost_untold = 0
        self._append(data)
        self._lines += 1

    def _append(self, data: bytes) -> None:
        written = os.write(self._fd, data)
        self._size += written
        if written < len(data):
            raise OSError("short write")

    def _open(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path(), flags, FILE_MODE)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        self._close_file()
        for number in range(self._settings.file_max - 1, -1, -1):
            with contextlib.suppress(FileNotFoundError):
                self.path(number).rename(self.path(number + 1))
        self.path(self._settings.file_max).unlink(missing_ok=True)
        self._open()
        self._rotations += 1

    def _delete_from(self, first: int) -> None:
        """Deletes files that remain from a run with a larger -logfilemax."""
        daemon, ip, port = self._place
        start = log_file_name(daemon, ip, port, 0).removesuffix("000.log")
        pattern = re.compile(re.escape(start) + r"([0-9]{3,4})\.log")
        for path in list(self.directory.iterdir()):
            match = pattern.fullmatch(path.name)
            if match and int(match[1]) >= first:
                path.unlink(missing_ok=True)

    def _close_file(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def statistics(self) -> LogStatistics:
        return LogStatistics(self._lines, self._rotations, self._lost)

    def close(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._close_file()
        super().close()
