"""What a client's receiver or browser is pinned to, and what it shows.

Features: D3 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.pinning import check_pinning, pinned_member
from spark_jms.core.address import DestinationAddress
from spark_jms.core.destination import Destination
from spark_jms.errors import MemberLostException, NoSuchElementException, OptionError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.store import Store, StoreError


@dataclass(frozen=True)
class Pinning:
    """How the receivers and browsers of one connection are pinned. `by_default`: where `pin` is not given; `home`: the server
    that its receivers prefer."""

    by_default: bool = False
    home: str | None = None

    def receiver(
        self, settings: ConsumerSettings, store: Store, log: DeltaLog, address: DestinationAddress, pin: bool | None
    ) -> ConsumerSettings:
        """The settings of a new receiver of `address`. Raises OptionError, InvalidDestinationError and
        MemberUnavailableError."""
        declared = log.snapshot.destination
        if settings.members is not None and (address.server is not None or pin):
            raise OptionError(
                f"members names members of {address} that are named already: leave out members, or the rest"
            )
        named = address.members(declared)
        if named is not None:
            return replace(settings, server=address.server, pinned=True) if declared.placement else settings
        if settings.members is not None or not self._wanted(declared, pin):
            return settings
        found = pinned_member(store, log.snapshot, self.home)
        if declared.placement:
            return replace(settings, server=found.server, pinned=True)
        return replace(settings, members=frozenset([found.member]), pinned=True)

    def browser(self, store: Store, log: DeltaLog, address: DestinationAddress, pin: bool | None) -> Shown:
        """Raises InvalidDestinationError and MemberUnavailableError."""
        address.members(log.snapshot.destination)
        if address.server is not None or not self._wanted(log.snapshot.destination, pin):
            return Shown(address)
        return Shown(address, pinned_member(store, log.snapshot, receives=False).member)

    def _wanted(self, declared: Destination, pin: bool | None) -> bool:
        if pin:
            check_pinning(declared)
        return pin or (pin is None and self.by_default and not declared.is_topic)


@dataclass(frozen=True)
class Shown:
    """What a browser shows: the members that the address names, or the one that it is pinned to."""

    address: DestinationAddress
    pinned: int | None = None

    def members(self, declared: Destination) -> list[int] | None:
        """None: all. Raises InvalidDestinationError, or MemberLostException when the pinned one is down or removed."""
        if self.pinned is None:
            return self.address.read_members(declared)
        if self.pinned not in declared.member_ids:
            raise self._lost("it was removed")
        if self.pinned in declared.down_members:
            raise self._lost(f"its server {declared.server_of(self.pinned)} is down")
        return [self.pinned]

    def check_kept(self, table: DeltaLog) -> None:
        """In the middle of an iteration. Raises NoSuchElementException."""
        if self.pinned is None or not table.has_news():
            return
        try:
            self.members(table.refresh().destination)
        except MemberLostException as error:
            raise NoSuchElementException(f"{error}; the messages that it has shown are not all") from error

    @contextmanager
    def losing(self) -> Iterator[None]:
        """While the store of the pinned member is asked."""
        try:
            yield
        except StoreError as error:
            if self.pinned is None:
                raise
            raise self._lost(f"{type(error).__name__}: {error}") from error

    def _lost(self, why: str) -> MemberLostException:
        return MemberLostException(
            f"this browser of {self.address} is pinned to member {self.pinned} and has lost it: {why}. Create a new browser"
        )
