"""Units of work as a client sends and receives them.

Features: T12 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from spark_jms.client.encoding import Undecodable, compose
from spark_jms.client.message import Message, MessageArguments, Receipt
from spark_jms.core.unit_of_work import END, NUMBER, UNIT
from spark_jms.errors import IllegalStateException, MessageFormatError


def as_unit(items: Iterable[Message | MessageArguments], name: str | None, now_ms: int) -> list[Message]:
    """Messages, or arguments of `send`, with the properties of one unit of work; `name` None: a name used nowhere else. Raises
    MessageFormatError."""
    if name == "":
        raise MessageFormatError("the name of a unit of work is empty")
    made = [item if isinstance(item, Message) else compose(now_ms, item) for item in items]
    if not made:
        raise MessageFormatError("a unit of work has at least one message")
    unit = name or str(uuid.uuid4())
    return [_part(message, unit, number, len(made)) for number, message in enumerate(made, 1)]


def _part(message: Message, unit: str, number: int, count: int) -> Message:
    own = {name: value for name, value in message.properties.items() if name != END}
    end = {END: True} if number == count else {}
    return replace(message, properties={**own, UNIT: unit, NUMBER: number, **end})


@dataclass(frozen=True, slots=True)
class _PartOfUnit:
    """The receipt of a message within a received unit."""

    unit: str

    def acknowledge(self, message: Message) -> None:
        self._refuse("acknowledge")

    def reject(self, message: Message, delay_s: float | None) -> None:
        self._refuse("reject")

    def reply(self, message: Message, arguments: Any) -> Message:
        self._refuse("reply to")

    def _refuse(self, purpose: str) -> NoReturn:
        raise IllegalStateException(
            f"this message is part of the unit of work {self.unit!r}, which is acknowledged, rejected and replied to as one: "
            f"{purpose} the message that was received"
        )


def in_units(
    messages: Sequence[Message], undecodable: Sequence[Undecodable], receipt: Receipt
) -> tuple[list[Message], list[Undecodable]]:
    """Claimed messages in the order of delivery, each unit of work as one message. A unit with an undecodable message is
    undecodable."""
    bad = {(b.member, b.unit_of_work): b for b in undecodable if b.unit_of_work is not None}
    whole: list[Message] = []
    aside = list(undecodable)
    for (member, unit), parts in itertools.groupby(messages, lambda m: (m.member, m.properties.get(UNIT))):
        if unit is None:
            whole += parts
        elif (found := bad.get((member, unit))) is not None:
            reason = f"message {found.sequence} of its unit of work {unit!r} cannot be decoded"
            aside += [Undecodable(member, part.sequence, reason, unit) for part in parts]
        else:
            whole.append(_one(list(parts), receipt))
    return whole, aside


def together(undecodable: Iterable[Undecodable]) -> list[tuple[int, dict[int, str]]]:
    """(member, sequence -> reason) of what is set aside as one: a message, or a unit of work."""
    found: dict[tuple[int, str | int], dict[int, str]] = {}
    for bad in undecodable:
        own = bad.sequence if bad.unit_of_work is None else bad.unit_of_work
        found.setdefault((bad.member, own), {})[bad.sequence] = bad.reason
    return [(member, reasons) for (member, _), reasons in found.items()]


def _one(parts: list[Message], receipt: Receipt) -> Message:
    last = parts[-1]
    part_receipt = _PartOfUnit(str(last.properties[UNIT]))
    return replace(
        last,
        text=None,
        body=None,
        map=None,
        expiration_ms=min((part.expiration_ms for part in parts if part.expiration_ms), default=0),
        delivery_time_ms=max(part.delivery_time_ms for part in parts),
        redelivered=any(part.redelivered for part in parts),
        delivery_count=max(part.delivery_count for part in parts),
        unit_of_work=tuple(replace(part, _receipt=part_receipt) for part in parts),
        _receipt=receipt,
    )
