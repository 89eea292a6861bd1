"""The errors of the benchmark."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot continue; the message says what to do."""


class PeerMissingError(BenchmarkError):
    """A peer cannot be resolved or started; every table it belongs to names it."""


class CellFailedError(BenchmarkError):
    """A cell ran with a wrong result (missing rows, time-out), so it has no figure."""
