"""A logged batch that Spark has a query deliver, perhaps again after a restart: what of it is delivered.

A batch that this instance has just made is delivered as it is. Of any other each server is asked which of its messages the claim still
has (`ServerPart.protect`); what becomes of the messages of a server that is away stands in absent_servers.py. Where the query narrows
failing batches, the attempt is written to all servers before anything is delivered (failures/poison.py).

Features: C5, C9, M4, M10 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial

from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.absent_servers import ProgressNotes, WithheldMessages
from spark_jms.claims.consumers.branches import Branches
from spark_jms.claims.consumers.server_part import ServerPart
from spark_jms.claims.failures.poison import Attempt, Isolation, ProtectedPart
from spark_jms.claims.servers.timed_stores import ServerAwayError
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.records.batch import Batch
from spark_jms.core.records.poison import Messages, Trial, joined, without
from spark_jms.errors import MemberUnavailableError, StaleCheckpointError
from spark_jms.log.tables.delta_log import DeltaLog

log = logging.getLogger("spark_jms")
TRUSTED_S = 5.0  # so long a claim that was just made needs no second look before its batch is delivered


class BatchReplay:
    """Of one query. Not thread-safe: the subscriber's lock guards it."""

    def __init__(
        self,
        table: DeltaLog,
        branches: Branches,
        isolation: Isolation,
        left_out: WithheldMessages,
        noted: ProgressNotes,
        settings: ConsumerSettings,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._table, self._branches, self._isolation = table, branches, isolation
        self._left_out, self._noted, self._settings, self._monotonic_s = left_out, noted, settings, monotonic_s
        self._made_s: dict[str, float] = {}  # the newest claim -> when it was made
        self._delivered = ""  # the claim of the newest batch that this instance has let Spark deliver

    def made(self, claim: str) -> None:
        """A batch was made."""
        self._made_s = {claim: self._monotonic_s()}

    def resume(self, batch: Batch) -> dict[int, Ranges]:
        """See `Subscriber.resume`."""
        unseen: dict[int, Ranges] = {}
        made_s, delivered = self._made_s.get(batch.claim), batch.delivered
        trusted = made_s is not None and self._monotonic_s() - made_s <= TRUSTED_S
        if not trusted:
            self._noted.check(batch, self._table.name)
            self._left_out.look(batch.claim)
        out = self._left_out.members(batch.claim)
        on = {s: [m for m in self._branches.members_on(s) if m in delivered and m not in out] for s in self._branches}
        protects = {
            s: partial(ServerPart.protect, batch=batch.part(members))
            for s, members in on.items()
            if members or self._branches.in_place  # the only store knows whether the batch is acknowledged
        }
        waits = set() if trusted else protects.keys() - self._table.snapshot.destination.down.keys()
        parts, away = self._branches.insist(protects, waits=waits)
        acknowledged = any(part.acknowledged for part in parts.values()) or self._noted.has(batch.claim)
        for server, error in away.items():
            branch = self._branches[server]
            if trusted or batch.claim == self._delivered:
                unseen |= {m: delivered[m].picks for m in on[server]}
            elif branch.older_self is not None:  # it runs, and may have given the whole batch to the sink
                raise branch.older_self from error
            elif acknowledged or self._settings.isolates_poison:
                raise self._unavailable(branch.server, error) from error
            else:
                self._leave_out(batch.claim, on[server], server, error)
        self._delivered, out = batch.claim, self._left_out.members(batch.claim)
        # A member that was removed was empty: others have finished its messages since this query died.
        gone = delivered.keys() - self._table.snapshot.destination.member_ids
        lost: dict[int, Ranges] = {m: ranges for part in parts.values() for m, ranges in part.lost.items()}
        lost |= {m: delivered[m].picks for m in {*out, *gone} if m in delivered}
        if acknowledged:
            return self._again(batch, parts.values(), lost, gone)
        attempt = self._isolation.attempt(batch.claim, parts, unseen)
        if attempt.stored:
            self._store_copies(attempt, parts.keys())
        self._isolation.begin(attempt)
        return dict(joined(lost, without(attempt.present, attempt.trial.tried)))

    def _again(
        self, batch: Batch, parts: Iterable[ProtectedPart], lost: Messages, gone: Collection[int]
    ) -> dict[int, Ranges]:
        """Some server has acknowledged the batch, so its sink took it: the same again, and no attempt of a trial."""
        if gone:
            raise StaleCheckpointError(
                f"the checkpoint of consumer {batch.consumer} of {self._table.name} asks for the batch with claim {batch.claim} "
                f"again, which is acknowledged, and member {min(gone)} was removed since with its messages. Start with a fresh "
                "checkpointLocation: it gets all unfinished messages."
            )
        for part in parts:
            lost = joined(lost, without(part.present, part.taken))
        return dict(lost)

    def _leave_out(self, claim: str, members: Sequence[int], server: str, error: ServerAwayError) -> None:
        what = "the batch is delivered without its messages, which come later, flagged"
        log.warning("%s: server %s is away: %s (%s)", self._table.name, server, what, error)
        self._left_out.add(claim, members)

    def _store_copies(self, attempt: Attempt, servers: Collection[str]) -> None:
        """Write the trial's copies: first the one that sets the poison message aside."""
        holders = {self._branches.server_of(member) for member in attempt.convicted}

        def convict(part: ServerPart) -> None:
            part.batches.trial_copy.set_aside(attempt.trial, attempt.convicted, attempt.failures)

        for server in [*holders, *sorted(set(servers) - holders)]:
            act = {server: convict if server in holders else _keep(attempt.trial)}
            _, away = self._branches.insist(act, writes=True, waits={server} - holders)
            for error in away.values():
                raise self._unavailable(server, error) from error

    def _unavailable(self, server: str, error: ServerAwayError) -> MemberUnavailableError:
        return MemberUnavailableError(
            f"{self._table.name}: the batch has messages on server {server}, which is away ({error}): only its store knows "
            "whether they still belong to this query. Start the query again when the server answers"
        )

    def note_failure(self) -> None:
        """See `Subscriber.note_failure`."""
        trial = self._isolation.fail()
        if trial is None:
            return
        for server in {self._branches.server_of(member) for member in trial.messages} & self._branches.keys():
            list(self._branches.answers(server, _keep(trial), writes=True))


def _keep(trial: Trial) -> Callable[[ServerPart], None]:
    return lambda part: part.batches.trial_copy.keep(trial)
