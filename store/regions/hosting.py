"""What a process that runs a daemon offers to a service, and what it expects of one.

A service is a store instance with a listener in front of it: the WebHDFS namespace in a daemon, the engine of the record
sets in a process that opened their regions. Whichever process opens the regions serves, and publishes its address in
the Global Directory (`GlobalDirectory.publish_service`); the others read it there (`published_service`).

The daemon knows no service. Its composition root (`regions/daemon/__main__.py`) hands it a factory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from spark_jms.store.regions.core.config import ClusterConfig
from spark_jms.store.regions.global_directory import GlobalDirectory


@dataclass(frozen=True)
class Host:
    """The daemon as its service sees it. `leaving` is true once the daemon moves its regions away: the service then closes
    its own regions and serves no more."""

    directory: GlobalDirectory
    config: ClusterConfig
    daemon: int
    log: logging.Logger
    leaving: Callable[[], bool]


class HostedService(Protocol):
    """A service on the event loop of its host."""

    name: str
    """For the daemon's log."""

    @property
    def address(self) -> str:
        """host:port on which it listens, once started."""

    async def start(self) -> None:
        """Listens. Opens its regions in the background and keeps trying while another process has them open."""

    async def stop(self) -> None:
        """Stops listening and closes the regions."""


ServiceFactory = Callable[[Host], HostedService]
