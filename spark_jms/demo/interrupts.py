"""Ctrl-C and SIGTERM, which end the demo wherever it is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Libraries lose a KeyboardInterrupt that is raised inside of them, as the import of a C module does, or raise an error of their
    own instead, as pandas does while it reads. So what has arrived is remembered."""

    def __init__(self) -> None:
        self.arrived = False

    def take(self) -> None:
        """From now on they raise KeyboardInterrupt, also where another handler has been put in between, as Spark's driver does."""
        for number in _SIGNALS:
            signal.signal(number, self._arrive)

    def ignore(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def check(self) -> None:
        """Raises KeyboardInterrupt if one has arrived."""
        if self.arrived:
            raise KeyboardInterrupt

    @contextmanager
    def told(self) -> Iterator[None]:
        """What ends after one has arrived ends with KeyboardInterrupt."""
        try:
            yield
        except Exception as error:
            if self.arrived:
                raise KeyboardInterrupt from error
            raise
        self.check()

    def _arrive(self, *_: object) -> None:
        self.arrived = True
        raise KeyboardInterrupt
