"""The port that finds the engine of a store: another process, or this one if it wins the ownership."""

from __future__ import annotations

from abc import ABC, abstractmethod

from spark_jms.store.engine.link import Address
from spark_jms.store.engine.server import Server


class EngineFinder(ABC):
    @abstractmethod
    def find(self, failed: Address | None = None) -> Server | Address | None:
        """The engine as of now: the server in this process, which this call may start, or the address of another.

        `failed` is an address that has just not answered, although it may still be published. None means that there is
        no engine at the moment and the caller should ask again. A StoreError means that asking again is of no use."""

    @abstractmethod
    def close(self) -> None:
        """Stop the engine if it runs in this process."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: drop the descriptors and change nothing."""
