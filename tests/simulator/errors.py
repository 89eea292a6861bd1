"""What the simulator raises."""

from __future__ import annotations


class Violation(AssertionError):
    """The cluster broke a promise. The text names the region, the daemons and the values."""
