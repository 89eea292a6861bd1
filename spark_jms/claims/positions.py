"""The starting position of a subscription: earliest, latest, a sequence, a time.

Features: C6, C10 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

from spark_jms.core.destination import QUEUE_SUBSCRIPTION, Destination, Subscription
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import check_durable
from spark_jms.errors import OptionError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.snapshot import Snapshot
from spark_jms.log.subscriptions import create_subscription

_ACCEPTED = (
    'earliest, latest, {"sequence": 17}, {"sequence": {"0": 17, "2": 5}} by member, or {"time": "2026-01-31T08:00:00Z"}'
)


def ensure_subscription(
    log: DeltaLog, subscription: str | None, starting_position: str | None, selector: Selector | None = None
) -> str:
    """The name under which positions are kept. Makes a topic's subscription at `starting_position` (default: latest, as
    in JMS) if it is new; an existing one keeps its position. All consumers of a queue share one set of positions.

    A subscription keeps the selector it was made with: messages that the selector refuses are finished for all its
    consumers, so they would lose messages with another one. Raises OptionError, InvalidDestinationError.
    """
    destination = log.refresh().destination
    destination.refuse_subscription(subscription)
    if not destination.is_topic:
        if starting_position not in (None, "earliest"):
            raise OptionError(
                f"the starting position is {starting_position!r}, but {destination.name} is a queue, whose consumers share "
                "its messages from the earliest on: leave the position out, or purge old messages"
            )
        return QUEUE_SUBSCRIPTION
    subscription = _named(destination, subscription)
    text = selector.text.strip() if selector else None
    known = destination.subscriptions.get(subscription)
    if known is None:
        _parse(starting_position, destination)
        check_durable(destination, subscription)
        known = create_subscription(log, subscription, lambda snapshot: start_floors(snapshot, starting_position), text)
    check_selector(known, destination.name, text)
    return subscription


def find_subscription(log: DeltaLog, subscription: str | None, selector: Selector | None) -> str | None:
    """The name under which positions are kept; None when the topic's subscription was dropped. Raises OptionError."""
    destination = log.refresh().destination
    destination.refuse_subscription(subscription)
    if not destination.is_topic:
        return QUEUE_SUBSCRIPTION
    known = destination.subscriptions.get(_named(destination, subscription))
    if known is None:
        return None
    check_selector(known, destination.name, selector.text.strip() if selector else None)
    return known.name


def _named(topic: Destination, subscription: str | None) -> str:
    if not subscription:
        raise OptionError(
            f"{topic.name} is a topic: a consumer needs `subscription`, the name of a durable subscription; a new name creates one"
        )
    return subscription


def check_selector(known: Subscription, topic: str, text: str | None) -> None:
    if known.selector != text and not _same(known.selector, text):
        raise OptionError(
            f"subscription {known.name!r} of topic {topic} was made {_with(known.selector)}, not {_with(text)}: its consumers "
            f"share one selector. Use that one, or another subscription; or drop it with `jmsq subscriptions --drop "
            f"{topic}/{known.name}` and make it again"
        )


def _same(known: str | None, text: str | None) -> bool:
    one, other = Selector.parse(known), Selector.parse(text)
    return one is other if one is None or other is None else one.means(other)


def _with(selector: str | None) -> str:
    return f"with the selector {selector!r}" if selector else "without a selector"


def start_floors(snapshot: Snapshot, starting_position: str | None) -> dict[int, int]:
    """member -> the last sequence before the start. A removed member may be added again: what it has by now is over."""
    kind, value = _parse(starting_position, snapshot.destination)
    floors = {member: snapshot.last_sequence(member) for member in snapshot.lasting_members()}
    for member in snapshot.destination.member_ids:
        files = snapshot.member_files(member).files
        before_first = files[0].first - 1 if files else snapshot.last_sequence(member)
        last = snapshot.last_sequence(member)
        if kind == "latest":
            floors[member] = last
        elif kind == "earliest":
            floors[member] = before_first
        elif kind == "sequence":
            wanted = value.get(member, last + 1) if isinstance(value, dict) else value
            floors[member] = min(max(int(wanted) - 1, before_first), last)
        else:  # the first file with a message sent at that time or later
            late = [f.first for f in files if int(f.statistics["maxValues"].get("JMSTimestamp", 0)) >= value]
            floors[member] = late[0] - 1 if late else last
    return floors


def _parse(text: str | None, destination: Destination) -> tuple[str, Any]:
    if text is None or text in ("latest", "earliest"):
        return text or "latest", None
    try:
        value = json.loads(text)
        kind, inner = next(iter(value.items()))
        if len(value) == 1 and kind == "sequence":
            if isinstance(inner, dict):
                return kind, {int(member): int(sequence) for member, sequence in inner.items()}
            return kind, int(inner)
        if len(value) == 1 and kind == "time":
            if isinstance(inner, int):
                return kind, inner
            moment = datetime.fromisoformat(inner.replace("Z", "+00:00"))
            moment = moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
            return kind, int(moment.timestamp() * 1000)
    except (ValueError, AttributeError, TypeError, StopIteration):
        pass
    raise OptionError(f"the starting position of {destination.name} is {text!r}, but must be {_ACCEPTED}")
