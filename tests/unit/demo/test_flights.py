"""The flights of the demo."""

from __future__ import annotations

import zipfile
from typing import Any

import pytest

from spark_jms.demo import flights


def test_interrupt_while_the_flights_are_read_is_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C, whose signal comes in the middle of a read()."""

    def interrupted(*arguments: Any) -> bytes:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipExtFile, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        flights.load(10)
