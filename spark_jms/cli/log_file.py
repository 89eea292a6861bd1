"""The file of `--log-file`, which may be full or away for a while: no command fails for that, and a person reads it on stderr.

Features: T6 (docs/FEATURES.md)
"""

from __future__ import annotations

import sys
from contextlib import suppress
from logging import LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path

import click


class LogFile(RotatingFileHandler):
    """Says once that it cannot be written, and once that it can be again."""

    def __init__(self, file: Path, max_bytes: int, kept: int) -> None:
        """Raises OSError."""
        super().__init__(file, maxBytes=max_bytes, backupCount=kept, encoding="utf-8")
        self._failed = self._told = False

    def emit(self, record: LogRecord) -> None:
        self._failed = False
        super().emit(record)
        if self._told and not self._failed:
            self._told = False
            click.echo(f"jmsq: {self.baseFilename} can be written again", err=True)

    def handleError(self, record: LogRecord) -> None:  # noqa: N802: the name is logging's
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._failed = True
        if not self._told:
            self._told = True
            click.echo(
                f"jmsq: {self.baseFilename} cannot be written ({error.strerror or error}): entries are missing in it until it can",
                err=True,
            )

    def close(self) -> None:
        with suppress(OSError):  # what it could not write has been told
            super().close()
