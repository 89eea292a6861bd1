"""The requests of one connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from spark_jms.store.regions.core.protocol import RegionMessage, WriteRegion
from spark_jms.store.regions.core.space import Step


class Requests:
    """Numbered requests of one connection: what each one is for, until it is answered."""

    def __init__(
        self, send: Callable[[RegionMessage], None], numbers: Iterator[int], now_ms: Callable[[], float]
    ) -> None:
        self._send = send
        self._numbers = numbers
        self._now_ms = now_ms
        self._asked_ms: dict[int, float] = {}
        self._waits: dict[int, tuple[str, Any]] = {}

    def ask(self, what: str, make: Callable[[int], RegionMessage], detail: Any = None) -> int:
        request = next(self._numbers)
        self._waits[request] = (what, detail)
        self._asked_ms[request] = self._now_ms()
        self._send(make(request))
        return request

    def write(self, region: str, epoch: int, steps: list[Step]) -> int:
        return self.ask("write", lambda n: WriteRegion(n, region, epoch, steps), region)

    def find(self, request: int) -> tuple[str, Any]:
        return self._waits.get(request, ("", None))

    def asked_ms(self, request: int) -> float:
        return self._asked_ms[request]

    def pop(self, request: int) -> tuple[str, Any]:
        self._asked_ms.pop(request, None)
        return self._waits.pop(request, ("", None))

    def waits_for(self, what: str) -> bool:
        return any(waiting == what for waiting, _ in self._waits.values())
