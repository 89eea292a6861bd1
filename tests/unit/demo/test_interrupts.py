"""Ctrl-C in the demo: libraries that lose it, or word it as an error of their own."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

import pytest

from spark_jms.demo.interrupts import Interrupts


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield Interrupts()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_was_lost_is_remembered(interrupts: Interrupts, number: signal.Signals) -> None:
    interrupts.take()
    interrupts.check()
    with interrupts.told():
        pass
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(number)
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()
    with pytest.raises(KeyboardInterrupt), interrupts.told():
        pass


def test_error_that_a_library_makes_of_one_is_one(interrupts: Interrupts) -> None:
    interrupts.take()
    with pytest.raises(ValueError, match="before"), interrupts.told():
        raise ValueError("before")

    def read() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ValueError("C error: read failed") from None

    with pytest.raises(KeyboardInterrupt) as raised, interrupts.told():
        read()
    assert str(raised.value.__cause__) == "C error: read failed"


def test_handler_of_a_library_is_replaced(interrupts: Interrupts) -> None:
    """As PySpark's, which it puts as soon as it has a driver."""
    interrupts.take()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    interrupts.take()
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    interrupts.ignore()
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGTERM)
