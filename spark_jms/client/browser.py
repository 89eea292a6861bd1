"""Look at the messages of a destination without consuming them.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from spark_jms.claims import views
from spark_jms.claims.fetch import fetch
from spark_jms.claims.scan import Question, scan
from spark_jms.client.encoding import decoded, legible
from spark_jms.client.message import Message
from spark_jms.client.pinning import Shown
from spark_jms.core.destination import Destination
from spark_jms.core.ranges import EMPTY, Ranges
from spark_jms.core.record_set import RecordSet
from spark_jms.core.selector import Selector
from spark_jms.core.subscription_place import missed
from spark_jms.errors import DestinationReplacedError
from spark_jms.log.delta_log import DeltaLog
from spark_jms.log.domain import Domain
from spark_jms.store import Store

_WINDOW = 10_000  # messages of a member scanned at a time


class Browser:
    """Made by `Context.browser`. Each iteration is a snapshot: the messages that are in the table at its start and not
    finished, member by member in order, including claimed, delayed and expired ones; of one server if the name was
    `server@destination`. For a topic without a
    subscription, or with `include_finished`, everything still in the table. `delivery_count` is the count of the next
    delivery. Messages purged during the iteration are skipped; a destination that is dropped and created again meanwhile
    raises DestinationReplacedError."""

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
        only = self._shown.members(snapshot.destination)
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
                        self._shown.check_kept(table)
                        yield message
                self._check()

    def _selected(self, table: DeltaLog, declared: Destination, member: int, window: Ranges, table_id: str) -> Ranges:
        not_seen = missed(declared, self._subscription, member, window.last) if self._subscription else EMPTY
        if self._selector is None and not not_seen:
            return window
        return scan(table, member, window, Question(self._selector, missed=not_seen), table_id=table_id).picks
