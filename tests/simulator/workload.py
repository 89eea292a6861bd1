"""What a client does with its store: it creates, updates, deletes and reads objects, drawn from the seed."""

from __future__ import annotations

import random
from enum import Enum

from spark_jms.store.errors import RegionFullError
from tests.simulator.session import StoreSession

MAX_REGIONS = 3


class Wish(Enum):
    """What the client has to do after an operation."""

    NOTHING = "nothing"
    LEAVE = "leave"
    NEW_REGION = "new region"


class Workload:
    """`prefix`: begins every value, so that a violation shows which client wrote it."""

    def __init__(self, chance: random.Random, prefix: bytes, region_bytes: int) -> None:
        self._chance = chance
        self._prefix = prefix
        self._lengths = (0, 1, 40, 200, 900, region_bytes // 10)

    def operate(self, session: StoreSession) -> Wish:
        handles = list(session.core.places)
        dice = self._chance.random()
        try:
            if handles and dice < 0.25:
                session.delete(self._chance.choice(handles))
            elif handles and dice < 0.45:
                session.update(self._chance.choice(handles), self._value())
            elif handles and dice < 0.55:
                session.read(self._chance.choice(handles))
            elif dice < 0.57 and not session.writes:
                return Wish.LEAVE
            else:
                session.create(self._value())
        except RegionFullError:
            return self._make_room(session)
        return Wish.NOTHING

    def _make_room(self, session: StoreSession) -> Wish:
        if len(session.core.regions) < MAX_REGIONS and self._chance.random() < 0.5:
            return Wish.NEW_REGION
        if session.core.places:
            session.delete(self._chance.choice(list(session.core.places)))
        return Wish.NOTHING

    def _value(self) -> bytes:
        length = self._chance.choice(self._lengths)
        return self._prefix + self._chance.randbytes(8) + bytes(length)
