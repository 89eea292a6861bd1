"""Frames on their way, and the connection of one client."""

from __future__ import annotations

from collections.abc import Callable

from spark_jms.store.errors import ProtocolError
from spark_jms.store.regions.protocol.messages import RegionMessage, message_reader
from tests.models.regions.daemons import SimDaemon

Frame = tuple[int, RegionMessage] | bytes


class Wire:
    """One direction of one connection. Calls `cut` when a frame is damaged or out of order.

    Only a frame that a fault damages is encoded; all others travel as number and message (4 times faster).
    """

    def __init__(self, deliver: Callable[[RegionMessage], None], cut: Callable[[], None]) -> None:
        self.number = 0
        self.expected = 0
        self.deliver = deliver
        self.cut = cut
        self.last_ms = 0.0  # when the last frame arrives
        self.open = True
        self.leads_nowhere = False  # one end has forgotten the connection, and the other does not know

    def pack(self, message: RegionMessage) -> tuple[int, RegionMessage]:
        self.number += 1
        return self.number - 1, message

    def arrive(self, frame: Frame) -> None:
        if not self.open:
            return
        if isinstance(frame, bytes):
            try:
                (message,) = message_reader(first=self.expected).feed(frame)
            except (ProtocolError, ValueError):
                self.cut()
                return
        else:
            number, message = frame
            if number != self.expected:
                self.cut()
                return
        self.expected += 1
        self.deliver(message)


class ClientEnd:
    """The client's side of a connection."""

    name: str

    def receive(self, message: RegionMessage) -> None:
        """A message of the daemon has arrived."""

    def disconnected(self) -> None:
        """The connection was cut. Requests without an answer may or may not have happened."""

    def answering(self, message: RegionMessage) -> None:
        """The daemon has sent this answer, which binds it from now on, even if the frame is lost."""


class ClientConnection:
    """A client at a daemon: both ends and both wires."""

    def __init__(self, number: int, daemon: SimDaemon, end: ClientEnd, there: Wire, back: Wire) -> None:
        self.number = number
        self.daemon = daemon
        self.end = end
        self.there = there
        self.back = back
