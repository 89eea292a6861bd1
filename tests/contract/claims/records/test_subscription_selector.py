"""A durable subscription has one selector (C7, C10): messages it refuses are finished for all its consumers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from spark_jms import connect
from spark_jms.client import Consumer, Context
from spark_jms.errors import OptionError
from spark_jms.log.destinations.declarations import drop_subscription
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of

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


def test_other_selector_is_refused_without_loss(context: Context) -> None:
    """C7, C10: the error names the selector of the subscription."""
    send_colors(context)
    subscribe(context, RED).close()
    for other in (BLUE, None):
        with pytest.raises(OptionError, match="subscription 's' of topic prices was made with the selector .*red"):
            subscribe(context, other).receive(timeout=0)
    with subscribe(context, f" {RED} ") as again:
        message = again.receive(timeout=5)
        assert message is not None
        assert message.text == "red"
    assert Domain(context.root).log("prices").refresh().destination.subscriptions["s"].selector == RED


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    "other", ["k=1 and\tx   is not null", "((k = 1)) AND x IS NOT NULL", "k =1 And (x Is Not Null)"]
)
def test_selectors_are_compared_as_parsed(context: Context, other: str, durable: bool) -> None:
    """C7, C10: blanks, parentheses and the case of keywords change nothing."""
    how: dict[str, Any] = {"subscription": "s", "durable": durable}
    with context.consumer("prices", selector="k = 1 AND x IS NOT NULL", **how):
        context.consumer("prices", selector=other, **how).close()
        for unlike in (
            "k = 1.0 AND x IS NOT NULL",
            "k = TRUE AND x IS NOT NULL",
            "k = '1' AND x IS NOT NULL",
            "x IS NULL",
        ):
            with pytest.raises(OptionError, match="was made with the selector"):
                context.consumer("prices", selector=unlike, **how).receive(timeout=0)


def test_subscription_without_selector_delivers_all(context: Context) -> None:
    """C10: a subscription without a selector refuses a consumer with one."""
    send_colors(context)
    subscribe(context, None).close()
    with pytest.raises(OptionError, match="made without a selector, not with the selector"):
        subscribe(context, RED)


def test_running_consumer_notices_a_changed_selector(context: Context) -> None:
    """C7, C10: the next batch refuses a consumer with the old selector, before it finishes messages of the new one."""
    old = subscribe(context, RED)
    drop_subscription(domain_of(context).log("prices"), "s")
    subscribe(context, BLUE)
    send_colors(context)
    with pytest.raises(OptionError, match="blue"):
        old.receive(timeout=1)


def test_queue_accepts_any_selector(context: Context) -> None:
    """C7: in a queue, refused messages stay for other consumers."""
    for selector in (RED, BLUE, None):
        assert context.consumer("orders", selector=selector).receive(timeout=0) is None
