"""What `Context.consumer` is given, checked and brought into the form that the rest has.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from spark_jms.claims.subscription_request import Sharing
from spark_jms.client.consumer import MODES
from spark_jms.client.listener import ExceptionListener, MessageListener
from spark_jms.errors import OptionError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.settings.connection_factory import FACTORY_KEYS

StartingPosition = str | datetime | Mapping[str, Any]


@dataclass(frozen=True)
class GivenConsumer:
    """What `Context.consumer` is given, but for the acknowledge mode."""

    destination: str
    selector: str | None
    subscription: str | None
    durable: bool | None
    sharing: Sharing
    starting_position: StartingPosition | None
    prefetch: int | None
    members: int | Iterable[int] | None
    pin: bool | None
    listener: MessageListener | None
    exception_listener: ExceptionListener | None
    fail_on_data_loss: bool


def check_batch(transaction_batch: object, listener: object) -> None:
    """Raises OptionError."""
    if transaction_batch is None:
        return
    if type(transaction_batch) is not int or transaction_batch < 1:
        raise OptionError(f"transaction_batch is {transaction_batch!r}, but must be a whole number, 1 or more")
    if listener is None:
        raise OptionError("transaction_batch needs a listener: without one, call commit() of the session")


def check_resource(name: object, connect: object) -> None:
    """Raises OptionError."""
    if not isinstance(name, str) or not 1 <= len(name) <= 100 or not name.isprintable():
        raise OptionError(f"the name of a last resource is {name!r}, but must be text of 1 to 100 characters")
    if not callable(connect):
        raise OptionError(f"connect is {connect!r}, but must be a function that gives a connection")


def check_mode(acknowledge: object) -> None:
    """Raises OptionError."""
    if acknowledge not in MODES:
        raise OptionError(f"acknowledge is {acknowledge!r}, but must be one of {', '.join(MODES)}")


def check_prefetch(prefetch: object) -> None:
    """Raises OptionError."""
    maximum = FACTORY_KEYS["messagesMaximum"].type
    if prefetch is not None and not maximum.fits(prefetch):
        raise OptionError(f"prefetch is {prefetch!r}, but must be {maximum.allowed}")


def check_listeners(listener: object, exception_listener: object) -> None:
    """Raises OptionError."""
    check_listener("listener", listener)
    check_listener("exception_listener", exception_listener)
    if exception_listener is not None and listener is None:
        raise OptionError("an exception_listener needs a listener: without one, receive() raises the errors")


def check_listener(name: str, given: object) -> None:
    """Raises OptionError."""
    if given is not None and (not callable(given) or inspect.iscoroutinefunction(given)):
        raise OptionError(f"{name} is {given!r}, but must be a function of one argument that is not async")


def starting_position_option(given: StartingPosition | None) -> str | None:
    """As the option startingPosition has it. Raises OptionError."""
    if given is None or isinstance(given, str):
        return given
    try:
        return json.dumps({"time": given.isoformat()} if isinstance(given, datetime) else given)
    except (TypeError, ValueError):
        raise OptionError(
            f'starting_position is {given!r}, but must be "latest", "earliest", a datetime, {{"sequence": 17}} or '
            '{"sequence": {0: 17, 2: 5}} by member'
        ) from None


def named_members(log: DeltaLog, members: int | Iterable[int] | None) -> frozenset[int] | None:
    """None: all. Raises OptionError."""
    if members is None:
        return None
    named = frozenset([members] if isinstance(members, int) else members)
    there = log.snapshot.destination.member_ids
    if not named or not all(type(m) is int and m in there for m in named):
        shown = f"{there[0]} to {there[-1]}" if isinstance(there, range) else ", ".join(map(str, there))
        raise OptionError(f"members is {members!r}, but {log.name} has the members {shown}: name some of them")
    return named
