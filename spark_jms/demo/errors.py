"""Errors of the demo itself."""

from __future__ import annotations

from spark_jms.errors import JmsqError


class DemoError(JmsqError):
    """The demo could not continue: the message names the step, and --keep DIR keeps the logs."""
