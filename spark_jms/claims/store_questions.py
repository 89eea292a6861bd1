"""Asks one server's store in threads of its own, so that a store that hangs holds up no caller.

Features: D4, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from spark_jms.claims.lane import Lane, LaneBusyError, Runs
from spark_jms.core.delivery_sample import FAILED, Samples
from spark_jms.core.server_lease import Contact

log = logging.getLogger("spark_jms")


def monotonic_ms() -> float:
    return time.monotonic() * 1000


class StoreQuestions:
    """Thread-safe. `read` asks the store, `find_absence` looks at its address and tells what is missing there, `take_sample` asks as
    much as a delivery does and tells the effort."""

    def __init__(
        self,
        server: str,
        read: Callable[[], object],
        find_absence: Callable[[], str],
        take_sample: Callable[[], float],
        lane: Callable[[str], Runs] = Lane,
        clock_ms: Callable[[], float] = monotonic_ms,
    ) -> None:
        self._server, self._read, self._find_absence, self._clock_ms = server, read, find_absence, clock_ms
        self._take_sample = take_sample
        self._asking, self._looking = lane(f"lease of {server}"), lane(f"address of {server}")
        self._sampling = lane(f"sample of {server}")
        self._lock = threading.Lock()
        self._contact, self._samples = Contact(), Samples()

    @property
    def contact(self) -> Contact:
        return self._contact

    @property
    def samples(self) -> Samples:
        return self._samples

    def ask(self, now_ms: float) -> None:
        """Nothing while another question is under way. The lane is busy for a moment longer than that: a question that it
        refused would count as one without an answer, for ever."""
        if self._asking.busy:
            return
        with self._lock:
            self._contact = self._contact.asked(now_ms)
        with suppress(LaneBusyError):
            self._asking.run(self._ask, 0.0)

    def look(self, now_ms: float) -> None:
        """Nothing while another look is under way."""
        with suppress(LaneBusyError):
            self._looking.run(self._look, 0.0)

    def sample(self, now_ms: float) -> None:
        """As `ask`."""
        if self._sampling.busy:
            return
        with self._lock:
            self._samples = self._samples.begin(now_ms)
        with suppress(LaneBusyError):
            self._sampling.run(self._sample, 0.0)

    def close(self) -> None:
        self._asking.close()
        self._looking.close()
        self._sampling.close()

    # -- in the lanes ---------------------------------------------------------------------------------------------
    def _ask(self) -> None:
        try:
            self._read()
        except Exception as error:  # noqa: BLE001 - whatever it is, the store gave no answer
            log.debug("server %s: %s", self._server, error)
            with self._lock:
                self._contact = self._contact.failed()
        else:
            with self._lock:
                self._contact = self._contact.answered()

    def _look(self) -> None:
        now_ms = self._clock_ms()
        try:
            absent = self._find_absence()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is known of the address
            log.debug("server %s: its address is unknown: %s", self._server, error)
            absent = ""
        with self._lock:
            self._contact = self._contact.looked(now_ms, absent=bool(absent))

    def _sample(self) -> None:
        try:
            effort = self._take_sample()
        except Exception as error:  # noqa: BLE001 - whatever it is, a delivery would have failed
            log.debug("server %s: a sample failed: %s", self._server, error)
            effort = FAILED
        with self._lock:
            self._samples = self._samples.end(effort, self._clock_ms())
