"""What an application gives an asynchronous send, to learn its outcome.

Features: T11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spark_jms.client.message import Message
from spark_jms.errors import OptionError


class CompletionListener(Protocol):
    """JMS's interface. A thread of the context calls one of the two for each message, once its send is decided."""

    def on_completion(self, message: Message, /) -> object:
        """The message is in the table. It has its id, member and sequence."""

    def on_exception(self, message: Message, error: Exception, /) -> object:
        """The message was not sent, except after a CommitOutcomeUnknownError. It has no id."""


@dataclass(frozen=True)
class Completion:
    """A CompletionListener of two functions."""

    on_completion: Callable[[Message], object]
    on_exception: Callable[[Message, Exception], object]


def check_completion(listener: CompletionListener) -> None:
    """Raises OptionError."""
    for name in ("on_completion", "on_exception"):
        if not callable(getattr(listener, name, None)):
            raise OptionError(
                f"completion is {listener!r}, which has no method {name}: give an object with on_completion(message) and "
                "on_exception(message, error), or Completion(…, …) of two functions"
            )
