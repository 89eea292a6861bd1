"""Look at the messages of a destination without consuming them; and to which member a receiver or browser is pinned.

Features: C11, D3 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.messages.fetch import fetch
from spark_jms.claims.messages.scan import Question, scan
from spark_jms.claims.servers.stores import check_pinning, pinned_member
from spark_jms.claims.upkeep import views
from spark_jms.client.messages.encoding import decoded, legible
from spark_jms.client.messages.message import Message
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.subscriptions import missed
from spark_jms.core.messages.ranges import EMPTY, Ranges
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.errors import (
    DestinationReplacedError,
    InvalidDestinationError,
    MemberLostException,
    MemberUnavailableError,
    NoSuchElementException,
    OptionError,
)
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.store import Store, StoreError

_WINDOW = 10_000  # messages of a member scanned at a time
_LOOK_EVERY_S = 0.005  # whether a member is lost


@dataclass(frozen=True)
class Shown:
    """What a browser shows: all members, those that the address names, or the one that it is pinned to."""

    address: DestinationAddress
    pinned: int | None = None

    def members(self, declared: Destination) -> list[int] | None:
        """None: all. Raises InvalidDestinationError, or MemberLostException when a member that the browser was made for is down or
        removed."""
        if self.pinned is None:
            named = self.address.read_members(declared)
            if (down := self.down(declared)) is not None:
                raise self._lost(f"its server {down} is down")
            return named
        if self.pinned not in declared.member_ids:
            raise self._lost("it was removed")
        if self.pinned in declared.down_members:
            raise self._lost(f"its server {declared.server_of(self.pinned)} is down")
        return [self.pinned]

    def down(self, declared: Destination) -> str | None:
        """The server that the address names, while it is down."""
        named = self.address.server_in(declared)
        return named if named in declared.down else None

    def check_kept(self, table: DeltaLog) -> None:
        """In the middle of an iteration. Raises NoSuchElementException."""
        if self.pinned is None and self.address.server is None:
            return
        # Whether this call finds the news, or another thread of the process has read it: the table's snapshot is shared.
        snapshot = table.refresh() if table.has_news() else table.snapshot
        try:
            self.members(snapshot.destination)
        except (MemberLostException, InvalidDestinationError) as error:
            raise NoSuchElementException(f"{error}; the messages that it has shown are not all") from error

    @contextmanager
    def losing(self) -> Iterator[None]:
        """While the store of the members is asked."""
        try:
            yield
        except StoreError as error:
            if self.pinned is None and self.address.server is None:
                raise
            raise self._lost(f"{type(error).__name__}: {error}") from error

    def _lost(self, why: str) -> MemberLostException:
        what = f"is pinned to member {self.pinned}" if self.pinned is not None else "shows no other member"
        return MemberLostException(
            f"this browser of {self.address} {what} and has lost it: {why}. Create a new browser"
        )


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
        if address.members(declared) is not None:
            member = address.member_in(declared)
            server = address.server_in(declared) if declared.placement else None
            only = None if member is None else frozenset([member])
            return replace(settings, server=server, members=only, pinned=server is not None or only is not None)
        if settings.members is not None or not self._wanted(declared, pin):
            return settings
        found = pinned_member(store, log.snapshot, self.home)
        if declared.placement:
            return replace(settings, server=found.server, pinned=True)
        return replace(settings, members=frozenset([found.member]), pinned=True)

    def browser(self, store: Store, log: DeltaLog, address: DestinationAddress, pin: bool | None) -> Shown:
        """Raises InvalidDestinationError and MemberUnavailableError."""
        declared, named = log.snapshot.destination, Shown(address)
        address.members(declared)
        if (down := named.down(declared)) is not None:
            raise MemberUnavailableError(
                f"{address} cannot be browsed: its server {down} is down. Try again when it is up, or browse {address.destination}"
            )
        if address.server is not None or not self._wanted(declared, pin):
            return named
        return Shown(address, pinned_member(store, log.snapshot, receives=False).member)

    def _wanted(self, declared: Destination, pin: bool | None) -> bool:
        if pin:
            check_pinning(declared)
        return pin or (pin is None and self.by_default and not declared.is_topic)


class Browser:
    """Made by `Context.browser`. Each iteration is a snapshot: the messages that are in the table at its start and not
    finished, member by member in order, including claimed, delayed and expired ones; of one server if the name was
    `server@destination`. For a topic without a subscription, or with `include_finished`, everything still in the table.
    `delivery_count` is the count of the next delivery. Messages purged during the iteration are skipped; a destination that is dropped
    and created again meanwhile raises DestinationReplacedError. A browser of `server@destination`, and one that is pinned, loses its
    member when the server is down or the member is removed: an iteration that has begun raises NoSuchElementException."""

    def __init__(
        self,
        domain: Domain,
        store: Store,
        shown: Shown,
        subscription: str | None,
        selector: Selector | None,
        limit: int | None,
        include_finished: bool,
        check: Callable[[], None],
    ) -> None:
        self.destination, self._shown = shown.address.destination, shown
        self._domain, self._store, self._subscription = domain, store, subscription
        self._selector, self._limit, self._check = selector, limit, check
        self._include_finished = include_finished
        # Raises now if the subscription does not exist.
        self._states(domain.log(self.destination).refresh().destination)

    def __iter__(self) -> Iterator[Message]:
        return itertools.islice(self._messages(), self._limit)

    def __repr__(self) -> str:
        of = f"{self._shown.address}/{self._subscription}" if self._subscription else self._shown.address
        return f"<Browser of {of}{f', selector {self._selector.text}' if self._selector else ''}>"

    def _states(self, declared: Destination) -> dict[int, RecordSet]:
        self._check()
        members = self._shown.members(declared)
        if self._include_finished:
            return {}
        with self._shown.losing():
            return views.states(self._domain, self._store, self.destination, self._subscription, members)

    def _messages(self) -> Iterator[Message]:
        self._check()
        table = self._domain.log(self.destination)
        before = table.refresh()
        states = self._states(before.destination)
        snapshot, table_id = table.refresh(), before.table_id
        if snapshot.table_id != table_id:
            raise DestinationReplacedError()
        only, looked_s = self._shown.members(snapshot.destination), time.monotonic()
        present = {
            m: Ranges.of(*((f.first, f.last) for f in files.files))
            for m, files in snapshot.members.items()
            if only is None or m in only
        }
        for member, left in sorted(present.items()):
            state = states.get(member)
            if state is not None:
                left = left & state.unfinished(1, left.last) if left else left
            while left:
                window = left.take(_WINDOW)
                left = left - window
                picks = self._selected(table, snapshot.destination, member, window, table_id)
                redelivered = state.redelivered(picks) if state and picks else {}
                rows = fetch(
                    table, self.destination, member, picks, redelivered, fail_on_data_loss=False, table_id=table_id
                )
                for batch in rows:
                    found = decoded(batch, None)
                    for message in legible(batch) if found.undecodable else found.messages:
                        if time.monotonic() - looked_s >= _LOOK_EVERY_S:
                            self._shown.check_kept(table)
                            looked_s = time.monotonic()
                        yield message
                self._check()

    def _selected(self, table: DeltaLog, declared: Destination, member: int, window: Ranges, table_id: str) -> Ranges:
        not_seen = missed(declared, self._subscription, member, window.last) if self._subscription else EMPTY
        if self._selector is None and not not_seen:
            return window
        return scan(table, member, window, Question(self._selector, missed=not_seen), table_id=table_id).picks
