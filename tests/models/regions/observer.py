"""What a cluster reports while it runs: invariants, traces and traffic counters listen."""

from __future__ import annotations

from spark_jms.store.regions.protocol.messages import RegionMessage
from spark_jms.store.regions.protocol.region_entry import Holder, RegionEntry
from tests.models.regions.connections import ClientConnection
from tests.models.regions.daemons import SimDaemon


class Observer:
    """Every method is called at the moment it describes. The default ignores it."""

    def note(self, text: str) -> None:
        """Something happened to the cluster: a crash, a pause, a partition."""

    def logged(self, daemon: int, text: str) -> None:
        """A daemon wrote this line to its log."""

    def sent(self, source: int, target: int, message: RegionMessage) -> None:
        """A daemon sent this message to another one."""

    def asked(self, connection: ClientConnection, message: RegionMessage) -> None:
        """A client sent this message to its daemon."""

    def answered(self, connection: ClientConnection, message: RegionMessage) -> None:
        """A daemon sent this message to a client."""

    def changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        """The directory changed an entry. `opened`: a client has opened the old region at least once, and its contents are
        removed now."""

    def refused(self, by: Holder, name: str, reason: str) -> None:
        """The directory did not make a change, or did not answer."""

    def handled(self, daemon: SimDaemon) -> None:
        """A daemon handled an event, and the cluster carried out its actions."""

    def stopping(self, daemon: SimDaemon) -> None:
        """A daemon stops by its own decision."""


REPORTS = tuple(name for name in vars(Observer) if not name.startswith("_"))
