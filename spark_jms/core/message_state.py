"""The states of a message in a record set, and the table of its transitions. The table executes:
`RecordSet._move` looks every change up here.

    AVAILABLE   a consumer may claim it
    CLAIMED     a consumer has it, and that consumer's session lives
    IN_DOUBT    the session died, but the consumer (a Spark query) can come back and replay the same batch
    MOVING      a transfer takes it to another destination; only the transfer's end changes it (transfer.py)
    PLEDGED     a transaction acknowledges it if it commits; only the transaction's end changes it (transaction.py)
    DONE        acknowledged, expired, refused by a topic's selector, dropped by a limit, purged or lost; final

`redelivers` marks the transitions after which the next delivery is flagged and counted. redelivery.py decides when they
happen.

Features: C5, C8, C9 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import NamedTuple


class MessageState(Enum):
    __hash__ = object.__hash__  # Enum's own runs in Python; every change looks a row up

    AVAILABLE = auto()
    CLAIMED = auto()
    IN_DOUBT = auto()
    MOVING = auto()
    PLEDGED = auto()
    DONE = auto()


class MessageEvent(Enum):
    __hash__ = object.__hash__

    CLAIM = auto()
    ACKNOWLEDGE = auto()
    RETURN = auto()  # no application has seen it: a release of prefetched messages, a claim that Spark never logged
    REDELIVER = auto()  # an application may have seen it: a release after delivery, a revoked claim
    DOUBT = auto()  # the session of the claim died
    RECOVER = auto()  # the consumer is back, or its session was only slow
    SKIP = auto()  # refused, dropped, purged, missed or lost
    EXPIRE = auto()  # its time is over, and no consumer has it
    MOVE = auto()  # the intent of a transfer is durable
    ARRIVE = auto()  # all targets of the transfer have it
    REFUSE = auto()  # no target has it, and none will
    PLEDGE = auto()  # a transaction that is not decided will acknowledge it if it commits


class MessageTransition(NamedTuple):
    to: MessageState
    redelivers: bool = False


_S, _E = MessageState, MessageEvent
TRANSITIONS: Mapping[tuple[MessageState, MessageEvent], MessageTransition] = {
    (_S.AVAILABLE, _E.CLAIM): MessageTransition(_S.CLAIMED),
    (_S.AVAILABLE, _E.SKIP): MessageTransition(_S.DONE),
    (_S.AVAILABLE, _E.EXPIRE): MessageTransition(_S.DONE),
    (_S.CLAIMED, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.CLAIMED, _E.RETURN): MessageTransition(_S.AVAILABLE),
    (_S.CLAIMED, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.CLAIMED, _E.DOUBT): MessageTransition(_S.IN_DOUBT),
    (_S.CLAIMED, _E.RECOVER): MessageTransition(_S.CLAIMED),
    (_S.CLAIMED, _E.MOVE): MessageTransition(_S.MOVING),
    (_S.CLAIMED, _E.PLEDGE): MessageTransition(_S.PLEDGED),
    (_S.IN_DOUBT, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.IN_DOUBT, _E.RETURN): MessageTransition(_S.AVAILABLE),
    (_S.IN_DOUBT, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.IN_DOUBT, _E.RECOVER): MessageTransition(_S.CLAIMED),
    (_S.MOVING, _E.ARRIVE): MessageTransition(_S.DONE),
    (_S.MOVING, _E.REFUSE): MessageTransition(_S.AVAILABLE, redelivers=True),
    (_S.PLEDGED, _E.ACKNOWLEDGE): MessageTransition(_S.DONE),
    (_S.PLEDGED, _E.REDELIVER): MessageTransition(_S.AVAILABLE, redelivers=True),
}
