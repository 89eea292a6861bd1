"""What can go wrong in the demo itself."""

from __future__ import annotations

from spark_jms.errors import JmsqError


class DemoError(JmsqError):
    """The demo could not go on: the message says in which step, and the logs are in the directory given with --keep."""
