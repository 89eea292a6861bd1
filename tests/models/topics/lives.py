"""The lives of the subscriptions that are not durable: one begins with the first consumer, and ends with the last."""

from __future__ import annotations

from collections.abc import Sequence

from spark_jms.core.destinations.subscriptions import server_of_subscription
from tests.models.topics.life import Life, SentMessage


class Lives:
    def __init__(self, sent: Sequence[SentMessage], *, keeps: bool) -> None:
        self._sent, self._keeps = sent, keeps
        self.open: dict[str, Life] = {}
        self.ended: list[Life] = []

    def joined(self, name: str, consumer: str) -> Life:
        """The life that a consumer has joined, which is under this name now."""
        if name not in self.open:
            self.open[name] = Life(name, server_of_subscription(name), self._keeps, len(self._sent))
        life = self.open[name]
        life.users.add(consumer)
        return life

    def left(self, life: Life, consumer: str) -> None:
        life.users.discard(consumer)
        if not life.users and self.open.get(life.name) is life:
            self.ended.append(self.open.pop(life.name))
