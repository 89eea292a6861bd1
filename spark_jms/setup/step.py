"""A step of set-up: one line on the screen with its time, and a bar when its end can be told. What the step and its commands
print goes to a log; a failed step shows the end of it and names it.

    python step.py TITLE LOG [--count PATTERN --of N] -- COMMAND …

Set-up runs this file before any package is installed, so it imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LOOK_EVERY_S = 0.2
SHOWN_LINES, SHOWN_WIDTH = 12, 160
_TITLE_WIDTH, _BAR_WIDTH = 44, 20  # with the time, fewer than 80 columns
_INTERRUPTED = 130


@dataclass(frozen=True)
class Countable:
    """A step whose log has about `total` lines that match `pattern`."""

    pattern: str
    total: int

    def done(self, log: str) -> float:
        """The finished part, from 0 to 1."""
        return min(len(re.findall(self.pattern, log, re.MULTILINE)) / max(self.total, 1), 1.0)


@contextlib.contextmanager
def step(title: str, log: Path, countable: Countable | None = None) -> Iterator[None]:
    """Show the step while the block runs. The standard output and standard errors of this process, and of those that the block
    starts, go to the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    started, screen = time.monotonic(), os.dup(1)
    line = _Line(screen, title, log, countable, started)
    try:
        with output_to(log):
            line.begin()
            try:
                yield
            except BaseException as error:
                line.end("interrupted" if isinstance(error, KeyboardInterrupt) else "failed")
                raise
            line.end()
    except Exception:
        os.write(screen, _failure(log).encode())
        raise
    finally:
        os.close(screen)


@contextlib.contextmanager
def output_to(log: Path, descriptors: tuple[int, ...] = (1, 2)) -> Iterator[None]:
    """Append what this process, and the processes it starts, write to the descriptors to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(descriptor) for descriptor in descriptors]
    with log.open("ab") as file:
        for descriptor in descriptors:
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, was in zip(descriptors, saved, strict=True):
            os.dup2(was, descriptor)
            os.close(was)


def run(command: list[str], title: str, log: Path, countable: Countable | None = None) -> int:
    """Run a command as a step. Returns its exit code."""
    try:
        with step(title, log, countable):
            subprocess.run(command, stdin=subprocess.DEVNULL, check=True)
    except subprocess.CalledProcessError as error:
        return error.returncode if error.returncode > 0 else 1
    except OSError as error:
        sys.stderr.write(f"   {error}\n")
        return 1
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


class _Line:
    """The line of a running step: redrawn on a terminal, elsewhere written once, its time at the end."""

    def __init__(self, screen: int, title: str, log: Path, countable: Countable | None, started_s: float) -> None:
        self._screen, self._title, self._log, self._countable = screen, title, log, countable
        self._started_s, self._moving = started_s, os.isatty(screen)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._redraw, name="step", daemon=True)

    def begin(self) -> None:
        if self._moving:
            self._thread.start()
        else:
            self._write(f"== {self._title:<{_TITLE_WIDTH}} ")

    def end(self, how: str = "") -> None:
        self._ended.set()
        if self._moving:
            self._thread.join()
        start = f"\r\x1b[K== {self._title:<{_TITLE_WIDTH}} " if self._moving else ""
        self._write(f"{start}{self._elapsed()}{how and f'  {how}'}\n")

    def _redraw(self) -> None:
        while True:
            self._write(f"\r\x1b[K== {self._title:<{_TITLE_WIDTH}} {self._elapsed()}{self._bar()}")
            if self._ended.wait(LOOK_EVERY_S):
                return

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._started_s:4.0f} s"

    def _bar(self) -> str:
        if self._countable is None:
            return ""
        full = int(self._countable.done(self._log.read_text(encoding="utf-8", errors="replace")) * _BAR_WIDTH)
        return f"  [{'#' * full}{'.' * (_BAR_WIDTH - full)}]"

    def _write(self, text: str) -> None:
        os.write(self._screen, text.encode())


def _failure(log: Path) -> str:
    said = log.read_text(encoding="utf-8", errors="replace").splitlines()
    shown = "".join(f"   {line[:SHOWN_WIDTH]}\n" for line in said[-SHOWN_LINES:])
    return f"{shown}   All that the step printed: {log}\n"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run a command as a step of set-up.")
    parser.add_argument("title")
    parser.add_argument("log", type=Path)
    parser.add_argument("--count", metavar="PATTERN", help="a bar: lines of the log that match …")
    parser.add_argument("--of", type=int, metavar="N", help="… of about so many")
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    countable = Countable(given.count, given.of) if given.count and given.of else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return run(given.command, given.title, given.log, countable)


if __name__ == "__main__":
    sys.exit(main())
