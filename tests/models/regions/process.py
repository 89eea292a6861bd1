"""A process that opens a store: the real instance and attachment, on the event loop and the sockets of the simulation."""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import DaemonUnavailableError, RegionLostError, StoreError
from spark_jms.store.regions.client.attachment import Attachment
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.space import RegionSpace
from spark_jms.store.regions.directory.overload import PublishedOverload
from spark_jms.store.regions.protocol.messages import Remove
from tests.models.regions.client_socket import ClientSocket
from tests.models.regions.cluster import SimCluster
from tests.models.regions.daemons import SimDaemon
from tests.models.regions.event_loop import SimLoop
from tests.models.regions.invariants import Invariants
from tests.models.regions.stored import Opener, Stored

REFUSALS = ("StoreFullError", "MemoryLimitError", "RegionFullError", "ObjectTooLargeError")  # nothing was written
THRESHOLDS = Thresholds(
    maximum_message_size_percent=12, space_overload_yellow_percent=100, space_overload_red_percent=100
)


class StoreProcess(Opener):
    """Opens its store at any daemon, uses it until that fails, and again. Once `finishing` it only reads everything, closes
    the store, and is `done`. After each recovery `audit` looks at the copies: what a reader has seen is on all of them."""

    def __init__(
        self,
        number: int,
        store: Stored,
        cluster: SimCluster,
        invariants: Invariants,
        chance: random.Random,
        audit: Callable[[Stored], None],
    ) -> None:
        self.name = f"client{number}"
        self.store = store
        self.finishing = False
        self.done = False
        self.recoveries = 0
        self.loop = SimLoop(cluster.schedule)  # type: ignore[abstract]  # what no part of the store uses
        self.instance: StoreInstance | None = None
        self.socket: ClientSocket | None = None
        self._cluster = cluster
        self._invariants = invariants
        self._chance = chance
        self._audit = audit
        self._attachments = 0
        self._removals = 0  # of the store's regions, before it was opened
        store.processes.append(self)

    # ---- the process

    def start(self) -> None:
        self.loop = SimLoop(self._cluster.schedule, self._chance.uniform(0.97, 1.03))  # type: ignore[abstract]
        self.loop.spawn(self._live())

    def die(self) -> None:
        """Without a word to its daemon, but its machine closes the connection."""
        self._cluster.note(f"{self.name} dies")
        self.store.leave(self)
        self.loop.die()
        if self.socket is not None:
            self.socket.leave()
        self.instance = self.socket = None

    async def _live(self) -> None:
        while not self.done:
            up = [daemon for daemon in self._cluster.daemons if daemon.core is not None]
            try:
                if up:
                    await self._use_once(self._chance.choice(up))
            except RegionLostError as error:
                await self._remove(self._chance.choice(up), str(error.args[0]).split()[1])
            except StoreError as error:
                self._cluster.note(f"{self.name}: {type(error).__name__}: {error.detail()}")
            self.store.leave(self)
            self.instance = None
            await self.loop.sleep(self._chance.uniform(0.05, 0.4))

    async def _use_once(self, daemon: SimDaemon) -> None:
        finishing, self._daemon, self._removals = self.finishing, daemon, self.store.removals
        self.instance = instance = await self._open(daemon)
        if self._is_late():
            await self._use_late(instance)
            return
        self.store.take(self)
        await self._recovered(instance)
        if self.owns:
            self._audit(self.store)
        self.recoveries += 1
        if not finishing:
            await self._work(instance)
        if instance.failure is None:
            self.store.leave(self)
            await instance.close()
            self.done = finishing

    # ---- what it does with its store

    @abstractmethod
    async def _recovered(self, instance: StoreInstance) -> None:
        """Checks what it finds."""

    @abstractmethod
    async def _work(self, instance: StoreInstance) -> None:
        """Until the instance fails, or it is time to finish."""

    def hurry(self) -> None:
        """Begins some work at once: a fault comes next, and finds it under way."""

    async def _use_late(self, instance: StoreInstance) -> None:
        """Another process has the store by now, and this one does not know."""
        await instance.close()

    @property
    def owns(self) -> bool:
        return self.store.owner is self

    def supersede(self) -> None:
        if self.socket is not None:
            self.socket.superseded_ms = self._cluster.now_ms

    def maps(self) -> dict[str, RegionSpace] | None:
        instance, socket = self.instance, self.socket
        if instance is None or socket is None or instance.failure is not None or not socket.quiet:
            return None
        if any(lane.steps for lane in instance._writes._lanes.values()):
            return None
        return instance._placement.regions

    # ---- its daemon

    async def _open(self, daemon: SimDaemon) -> StoreInstance:
        async def attach(lost: Callable[[str], None]) -> Attachment:
            return self._attach(daemon, lost)

        store = self.store
        published = PublishedOverload(Path("none"), store.name, self.name)  # no store is above yellow here
        return await StoreInstance.attached(
            attach, store.name, published, region_bytes=store.region_bytes, thresholds=THRESHOLDS
        )

    def _attach(self, daemon: SimDaemon, lost: Callable[[str], None] = lambda reason: None) -> Attachment:
        if daemon.core is None:
            raise DaemonUnavailableError(f"daemon {daemon.index}: down")
        self._attachments += 1
        self.socket = ClientSocket(
            self._cluster,
            daemon,
            self.loop,
            f"{self.name}.{self._attachments}",
            self._invariants,
        )
        return Attachment(self.socket, daemon.index, daemon.core.incarnation, lost)

    async def _remove(self, daemon: SimDaemon, *regions: str) -> None:
        try:
            attachment = self._attach(daemon)
            try:
                for name in regions:
                    await attachment.ask(lambda request, name=name: Remove(request, name, True))  # type: ignore[misc]
            finally:
                attachment.close()
        except StoreError as error:
            self._cluster.note(f"{self.name}: {type(error).__name__}: {error.detail()}")

    def _is_late(self) -> bool:
        """Whether another client opened a region after the daemon answered the last read of it, and before the answer came."""
        directory = self._cluster.directory
        assert self.socket is not None
        epochs = self.socket.epochs
        return any(name not in directory.entries or directory.opens.get(name) != epochs[name] for name in epochs)


def was_refused(error: StoreError, instance: StoreInstance) -> bool:
    """Nothing was written, and the instance continues."""
    return type(error).__name__ in REFUSALS and instance.failure is None
