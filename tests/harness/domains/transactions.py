"""Looking at destinations and receiving, for tests of transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from spark_jms.admin.destinations import pause, resume
from spark_jms.client import Context, Message
from spark_jms.core.destinations.pause import INSERTION
from spark_jms.testing.inside import domain_of


def shown(context: Context, destination: str, **options: Any) -> list[str | None]:
    return [message.text for message in context.browser(destination, **options)]


@contextmanager
def pause_of(context: Context, destination: str) -> Iterator[None]:
    """Insertion is paused in the block."""
    pause(domain_of(context), destination, [INSERTION])
    try:
        yield
    finally:
        resume(domain_of(context), destination, [INSERTION])


def received(consumer: Any) -> Message:
    message = consumer.receive(timeout=5)
    assert message is not None
    return message  # type: ignore[no-any-return]
