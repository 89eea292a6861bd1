"""The errors of the benchmark."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The benchmark cannot go on: read the message, it says what to do."""


class PeerMissingError(BenchmarkError):
    """A peer cannot be resolved or started; it is reported by name in every table it belongs to."""


class CellFailedError(BenchmarkError):
    """A cell ran and its outcome is wrong (rows missing, time-out): it has no figure."""
