"""All branches of one consumer of a destination that is on servers: which servers it takes messages of, and how long
it waits for each. branch.py has what becomes of one of them.

A call reaches the servers that answer; what a server that is away means depends on the call:

    `answers`, `each`, `any`   the server has no part in it
    `must`                     MemberUnavailableError: its messages cannot be acknowledged now
    `insist`                   asked again for RESUME_S, for a batch that is to be delivered

A consumer that is pinned to a server ends with it, whichever the call.

Features: D3, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TypeVar

from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.branch import Branch
from spark_jms.claims.lane import Runs, ServerAwayError
from spark_jms.claims.subscriber import Subscriber
from spark_jms.core.batch import Batch
from spark_jms.core.delivery_sample import READ_MS, WRITE_MS
from spark_jms.core.ranges import Ranges
from spark_jms.core.subscription_place import record_server, record_servers, recorded_on
from spark_jms.errors import (
    DestinationReplacedError,
    InvalidDestinationError,
    JmsqError,
    MemberLostException,
    MemberUnavailableError,
    OptionError,
)
from spark_jms.log.delta_log import DeltaLog

T = TypeVar("T")
ANSWER_S = READ_MS / 1000  # a server that does not answer for so long is left out of a batch
WRITE_S = WRITE_MS / 1000  # the same for a write, whose outcome is unknown then
ACKNOWLEDGE_S = 15.0
RESUME_S = 15.0  # how long a restarted query waits for a server of the batch that it has to deliver again
_POLL_S = 0.05


class Branches(Mapping[str, Branch]):
    """By server. Not thread-safe: the consumer's lock guards it. `opened` makes a consumer on a server, in a new session; `note_late`
    is told of the server whose answer is late or fails."""

    def __init__(
        self,
        table: DeltaLog,
        table_id: str,
        subscription: str,
        consumer: str,
        settings: ConsumerSettings,
        opened: Callable[[str], Subscriber],
        lane: Callable[[str], Runs],
        monotonic_s: Callable[[], float],
        note_late: Callable[[str], object],
    ) -> None:
        self._note_late = note_late
        self._table, self._table_id, self._subscription, self._consumer = table, table_id, subscription, consumer
        self._settings, self._opened, self._lane, self._monotonic_s = settings, opened, lane, monotonic_s
        self._branches: dict[str, Branch] = {}

    def __getitem__(self, server: str) -> Branch:
        return self._branches[server]

    def __iter__(self) -> Iterator[str]:
        return iter(self._branches)

    def __len__(self) -> int:
        return len(self._branches)

    # -- which ----------------------------------------------------------------------------------------------------
    def follow(self, batch: Batch | None = None) -> None:
        """One branch for each server that the destination is on now and that this consumer takes messages of; `batch` must
        have none of others."""
        snapshot = self._table.refresh()
        if snapshot.table_id != self._table_id:
            raise DestinationReplacedError()
        only, placed = self._settings.server, record_servers(snapshot.destination, self._subscription)
        servers = [server for server in placed if only in (None, server)]
        if not servers:
            raise self._lost("its member there was removed")
        if only is not None and batch is not None:
            self._check_within(batch, only)
        for server in self._branches.keys() - set(servers):
            self._branches.pop(server).close()  # its member was empty, so nothing is left to acknowledge
        for server in servers:
            if server not in self._branches:
                opened, late = partial(self._opened, server), partial(self._note_late, server)
                lane = self._lane(f"server {server}")
                self._branches[server] = Branch(server, opened, lane, self._monotonic_s, late)
            self._branches[server].follow(stopped=server in snapshot.destination.stopped)

    def members_on(self, server: str) -> list[int]:
        return recorded_on(self._table.snapshot.destination, server, self._subscription)

    def server_of(self, member: int) -> str:
        return record_server(self._table.snapshot.destination, self._subscription, member)

    def by_server(self, parts: Mapping[str, Mapping[int, Ranges]]) -> dict[str, dict[str, dict[int, Ranges]]]:
        """Claim -> member -> messages, for each server."""
        found: dict[str, dict[str, dict[int, Ranges]]] = {}
        for claim, members in parts.items():
            for member, picks in members.items():
                found.setdefault(self.server_of(member), {}).setdefault(claim, {})[member] = picks
        return found

    # -- asking them ----------------------------------------------------------------------------------------------
    def answers(self, server: str, act: Callable[[Subscriber], T], *, writes: bool = False) -> Iterator[T]:
        """The answer; none when the server is away. Raises MemberLostException when this consumer is pinned to it."""
        pinned = self._settings.pinned
        try:
            answer = self._branches[server].call(act, WRITE_S if writes or pinned else ANSWER_S, writes=writes)
        except ServerAwayError as error:
            if pinned:
                raise self._lost(str(error)) from error
            return
        yield answer

    def each(self, act: Callable[[Subscriber], T]) -> list[T]:
        return [answer for server in self._branches for answer in self.answers(server, act)]

    def any(self, act: Callable[[Subscriber], bool]) -> bool:
        return any(self.each(act))

    def must(self, server: str, act: Callable[[Subscriber], T]) -> T:
        """Raises MemberUnavailableError; MemberLostException when this consumer is pinned to the server."""
        name, branch = self._table.name, self._branches.get(server)
        if branch is None:
            raise MemberUnavailableError(f"{name} is not on server {server} any more: the message went with its member")
        try:
            return branch.call(act, ACKNOWLEDGE_S, writes=True)
        except ServerAwayError as error:
            if self._settings.pinned:
                raise self._lost(str(error)) from error
            raise MemberUnavailableError(
                f"{name}: server {server} is away ({error}): nothing is known to be acknowledged there; try again"
            ) from error

    def insist(
        self, acts: Mapping[str, Callable[[Subscriber], T]], *, writes: bool = False, waits: Collection[str] = ()
    ) -> tuple[dict[str, T], dict[str, ServerAwayError]]:
        """For a batch that is to be delivered: asks all these servers at once, until other consumers have handed records over, and
        those of `waits` answer; for RESUME_S at most. Returns the answers, and why the other servers are away. Raises
        MemberUnavailableError."""
        deadline = self._monotonic_s() + RESUME_S
        found: dict[str, T] = {}
        away: dict[str, ServerAwayError] = {}
        while left := acts.keys() - found.keys() - away.keys():
            begun = {
                server: self._branches[server].begin(acts[server], writes=writes) for server in acts if server in left
            }
            asked_s, held = self._monotonic_s(), []
            for server, answer in begun.items():
                try:
                    found[server] = answer(max(asked_s + ACKNOWLEDGE_S - self._monotonic_s(), 0.0))
                except MemberUnavailableError as error:
                    held.append(error)
                except ServerAwayError as error:
                    if server not in waits or self._monotonic_s() > deadline:
                        away[server] = error
            if held and self._monotonic_s() > deadline:
                raise held[0]
            if acts.keys() - found.keys() - away.keys():
                self.each(Subscriber.hand_over)  # the other consumer may wait for a record of ours, on another server
                time.sleep(_POLL_S)
        return found, away

    # -- errors ---------------------------------------------------------------------------------------------------
    def _check_within(self, batch: Batch, only: str) -> None:
        elsewhere = sorted({self.server_of(member) for member in batch.members} - {only})
        if elsewhere:
            raise OptionError(
                f"the checkpoint's last batch has messages of {self._table.name} on server {', '.join(elsewhere)}, and the query "
                f"names {only}@{self._table.name}: they would never be acknowledged. Name {self._table.name} again, or start "
                "with a fresh checkpointLocation"
            )

    def _lost(self, why: str) -> JmsqError:
        where = f"{self._settings.server}@{self._table.name}"
        if self._settings.pinned:
            again = "Messages that it has not acknowledged come again, flagged."
            if self._settings.live is not None:
                again = "Its subscription is not durable: it ends with its last consumer."
            return MemberLostException(
                f"consumer {self._consumer} has lost {where}: {why}. {again} Close this consumer and create a new one"
            )
        return InvalidDestinationError(f"{where} cannot be consumed: {why}")
