"""The actions that one event causes, in order (a leaf of the daemon core). Pure."""

from __future__ import annotations

from typing import Any

from spark_jms.store.regions.core.actions import Action, Log, ToClient, ToPeer
from spark_jms.store.regions.core.directory import Holder
from spark_jms.store.regions.core.protocol import Failure, RegionMessage, Reply


class Outgoing:
    """Collects actions until the driver takes them. A message for a connection that is not open is dropped."""

    def __init__(self, me: Holder) -> None:
        self.daemons: set[int] = set()  # those this daemon is connected to
        self.clients: dict[int, str] = {}  # connection number -> the client's name
        self._me = me
        self._actions: list[Action] = []
        self._ids = 0

    def add(self, action: Action) -> None:
        self._actions.append(action)

    def to_peer(self, daemon: int, message: RegionMessage) -> None:
        if daemon in self.daemons:
            self._actions.append(ToPeer(daemon, message))

    def to_client(self, client: int, message: RegionMessage) -> None:
        if client in self.clients:
            self._actions.append(ToClient(client, message))

    def reply(self, client: int, request: int, value: Any = None) -> None:
        self.to_client(client, Reply(request, value))

    def fail(self, client: int, request: int, error: str, *arguments: Any) -> None:
        """`error` is the name of a class of store.errors, `arguments` are its constructor's."""
        self.to_client(client, Failure(request, error, list(arguments)))

    def log(self, level: int, text: str) -> None:
        self.add(Log(level, text))

    def new_id(self) -> str:
        """Unique in this cluster for ever, because an incarnation is never used twice."""
        self._ids += 1
        return f"{self._me.daemon}-{self._me.incarnation}-{self._ids}"

    def take(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
