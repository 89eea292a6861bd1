"""A durable subscription has one selector (C7, C10): what it refuses is finished for all its consumers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_jms import connect
from spark_jms.client import Consumer, Context
from spark_jms.errors import OptionError
from spark_jms.log.domain import Domain
from spark_jms.log.subscriptions import drop_subscription
from spark_jms.testing import memory_domain

RED, BLUE = "color = 'red'", "color = 'blue'"


@pytest.fixture
def context() -> Iterator[Context]:
    with memory_domain(prices="topic", orders="queue") as root, connect(root, housekeeping=False) as opened:
        yield opened


def subscribe(context: Context, selector: str | None) -> Consumer:
    return context.consumer(
        "prices", subscription="s", selector=selector, starting_position="earliest", acknowledge="auto"
    )


def send_colors(context: Context) -> None:
    context.producer("prices").send_many({"text": c, "properties": {"color": c}} for c in ("red", "blue"))


def test_another_selector_is_refused_and_loses_nothing(context: Context) -> None:
    """C7, C10: by name, and the message says with which selector the subscription was made."""
    send_colors(context)
    subscribe(context, RED).close()
    for other in (BLUE, None):
        with pytest.raises(OptionError, match="subscription 's' of topic prices was made with the selector .*red"):
            subscribe(context, other).receive(timeout_s=0)
    with subscribe(context, f" {RED} ") as again:
        message = again.receive(timeout_s=5)
        assert message is not None
        assert message.text == "red"
    assert Domain(context.root).log("prices").refresh().destination.subscriptions["s"].selector == RED


def test_one_without_a_selector_gets_all(context: Context) -> None:
    """C10: and refuses a consumer that would take only some."""
    send_colors(context)
    subscribe(context, None).close()
    with pytest.raises(OptionError, match="made without a selector, not with the selector"):
        subscribe(context, RED)


def test_made_again_with_another_under_a_running_consumer(context: Context) -> None:
    """C7, C10: the consumer with the old selector is refused at its next batch, before it finishes what is not its own."""
    old = subscribe(context, RED)
    drop_subscription(context.domain.log("prices"), "s")
    subscribe(context, BLUE)
    send_colors(context)
    with pytest.raises(OptionError, match="blue"):
        old.receive(timeout_s=1)


def test_a_queue_takes_any(context: Context) -> None:
    """C7: there, what does not match stays for others."""
    for selector in (RED, BLUE, None):
        assert context.consumer("orders", selector=selector).receive(timeout_s=0) is None
