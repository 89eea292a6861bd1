"""What people and their programs do with a domain, on the functions that `jmsq` uses too.

Features: C14, C16, C18, D4, T1, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

from spark_jms.admin.claims import ConsumerRow, consumers, find_claim, release_claim
from spark_jms.admin.destinations import (
    DropPlan,
    Paused,
    RenamedDestination,
    drop_destination,
    names_or_all,
    pause,
    plan_drop,
    rename_destination,
    resume,
)
from spark_jms.admin.purge import Purged, drop_backlog, plan_purge, purge_files
from spark_jms.admin.quota import QuotaEntryRow, QuotaRow, newest_entries, quotas
from spark_jms.admin.servers import (
    PausedServer,
    ServerRow,
    check_answers,
    list_servers,
    pause_server,
    resume_server,
    start_server,
    stop_server,
)
from spark_jms.admin.services import Round, Rounds
from spark_jms.admin.statistics import DestinationStatistics, MemberStatistics, collect
from spark_jms.admin.transfer import Moved, MoveOrder, Redriven, RedriveOrder, move, plan_move, plan_redrive, redrive
from spark_jms.claims.records.life_cycle import opened_table
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.life_cycle_view import EventRow, events
from spark_jms.claims.upkeep.power_loss import open_given_domain
from spark_jms.claims.upkeep.views import ClaimRow, SubscriptionRow
from spark_jms.client.messages.message import Closable, OwningProcess, seconds_of
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.pause import OPERATIONS
from spark_jms.core.destinations.routing import DestinationAddress
from spark_jms.core.destinations.subscriptions import kept_at
from spark_jms.core.selector import Selector
from spark_jms.errors import ClosedError, JmsqError, OptionError
from spark_jms.log.destinations.domain import Domain
from spark_jms.settings.types import DurationLike
from spark_jms.store import Store

WAIT: DurationLike = "15 s"


def connect(root: str | os.PathLike[str] | None = None) -> Administrator:
    return Administrator(open_given_domain(root))


class Administrator(Closable):
    """Looks at a domain and changes it. Thread-safe; a forked child connects for itself. Made by `spark_jms.admin.connect`.

    `destination` is the name of a destination, or `server@destination` for its member on a server. `members` are the ids of some
    members (None: all; an empty list is an error). `selector` is a JMS selector. `wait`: how long to wait for a record that
    another administrator has open, before MemberUnavailableError. With `dry_run=True` nothing changes, and the result is what
    would be done now. Times are datetimes in UTC.

    Every call raises InvalidDestinationError for a destination, subscription or member that is not there, StoreError or
    MemberUnavailableError when a store does not answer that it needs, and ClosedError after `close`.
    """

    def __init__(self, domain: Domain, limit_s: float | None = None) -> None:
        """`limit_s`: of one call of a store, for looks that one hung store must not hold up."""
        self.root = domain.root
        self._process = OwningProcess()
        self._known_domain, self._opened_store = domain, open_stores(domain, limit_s)
        self._closed = False

    # -- looks --------------------------------------------------------------------------------------------------------
    def destinations(self) -> list[str]:
        """Their names, in order."""
        return self._domain.destinations()

    def statistics(self, destination: str, *, selector: str | None = None) -> DestinationStatistics:
        """Everything that `jmsq stat` shows, in messages, files and bytes. With a selector also what units of order keep from a
        consumer that has it, for which the headers of the backlog are read."""
        found = collect(self._domain, self._store, destination, Selector.parse(selector))
        check_answers(self._domain, self._store, [destination])
        return found

    def backlog(self, destination: str, *, subscription: str | None = None) -> list[SubscriptionRow]:
        """How many messages each subscription has not finished on each member (`backlog`), how many of them are claimed, and
        who holds the record. The subscription of a queue is called "-"."""
        address = DestinationAddress.parse(destination)
        declared = self._declared(address)
        address.members(declared)
        server, shown = address.server_in(declared), address.read_members(declared)
        only = None if subscription is None else kept_at(declared, server, subscription)
        rows = views.subscriptions(self._domain, self._store, address.destination, only, server=server)
        found = [row for row in rows if shown is None or row.member in shown]
        check_answers(self._domain, self._store, [destination])
        return found

    def members(self, destination: str) -> list[MemberStatistics]:
        """What each member has in messages, files and bytes, and which server it is on."""
        return self.statistics(destination).members

    def consumers(self, destination: str) -> list[ConsumerRow]:
        """The queries and clients that live, those without messages too. `destination` has no server."""
        found = consumers(self._domain, self._store, destination)
        check_answers(self._domain, self._store, [destination])
        return found

    def unserviced(self, *destinations: str) -> list[SubscriptionRow]:
        """Of these destinations, or of all: the members and subscriptions in which messages wait that no live consumer takes."""
        names = names_or_all(self._domain, destinations)
        found = [row for name in names for row in views.subscriptions(self._domain, self._store, name)]
        check_answers(self._domain, self._store, names)
        return [row for row in found if row.is_unserviced]

    def claims(self, *destinations: str) -> list[ClaimRow]:
        """The open claims of these destinations, or of all. A claim that is not `live` is in doubt: its consumer has died."""
        names = names_or_all(self._domain, destinations)
        found = [row for name in names for row in views.claims(self._domain, self._store, name)]
        check_answers(self._domain, self._store, names)
        return found

    def events(self, destination: str, *, subscription: str | None = None) -> list[EventRow]:
        """What became of the messages of a destination whose life-cycle log is on (`messageLoggingEnabled`), the oldest first."""
        return events(self._domain, self._store, destination, subscription)

    def life_cycle_table(self, destination: str) -> str:
        """The path or URL of the Delta table behind `events`, for jobs that read it as a stream. Raises InvalidDestinationError when
        there is none."""
        return opened_table(self._domain, destination).storage.uri

    def servers(self) -> list[ServerRow]:
        """The servers of the domain, up or down, and whether their stores answer; `home` is the domain's own store."""
        return list_servers(self._domain)

    def usage(self, *quotas_: str) -> list[QuotaRow]:
        """Limits and use of these quotas, or of all, in messages and bytes, with the sends that wait for room. Raises DomainError for
        a quota that the domain does not have."""
        return quotas(self._domain, list(quotas_))

    def quota_entries(self, quota: str) -> list[QuotaEntryRow]:
        """The newest entries of a quota's ledger, the oldest first. Raises DomainError."""
        return newest_entries(self._domain, quota)

    # -- changes ------------------------------------------------------------------------------------------------------
    def pause(self, destination: str, *operations: str, members: Iterable[int] | None = None) -> Paused:
        """Stop "production", "insertion", "consumption", or all three. A pause that stands keeps its time. Raises OptionError."""
        name, chosen = self._narrowed(destination, members)
        return pause(self._domain, name, operations or OPERATIONS, chosen)

    def resume(self, destination: str, *operations: str, members: Iterable[int] | None = None) -> Paused:
        """Restart what is paused of the destination and all its members, or of some. A member stays paused while its destination is.
        Raises OptionError."""
        name, chosen = self._narrowed(destination, members)
        return resume(self._domain, name, operations or OPERATIONS, chosen)

    def pause_server(self, server: str, *operations: str) -> PausedServer:
        """The same of all members on a server, and of those that come to it later; "home" is the domain's own. Raises OptionError, and
        DomainError when there is no such server."""
        return pause_server(self._domain, server, operations or OPERATIONS)

    def resume_server(self, server: str, *operations: str) -> PausedServer:
        """Restart what is paused of a server. What is paused of destinations and members stays so. Raises what `pause_server`
        raises."""
        return resume_server(self._domain, server, operations or OPERATIONS)

    def purge(
        self,
        destination: str,
        *,
        subscription: str | None = None,
        members: Iterable[int] | None = None,
        dry_run: bool = False,
        wait: DurationLike = WAIT,
    ) -> Purged:
        """Finish every message that was sent so far and is not claimed, then delete the files whose messages are all finished. Of a
        replicated topic, `server@topic` is about the subscriptions on that server."""
        wait_s, address, given = seconds_of("wait", wait), DestinationAddress.parse(destination), _listed(members)
        declared = self._declared(address)
        chosen, server = address.consumed(declared, given), address.server_in(declared)
        arguments = self._domain, self._store, address.destination, subscription, chosen
        if dry_run:
            return plan_purge(*arguments, server)
        done = drop_backlog(*arguments, wait_s, server)
        deleted = purge_files(self._domain, self._store, address.destination)
        return Purged(done.dropped, done.claimed, deleted.purged_messages, deleted.purged_files)

    def purge_finished(self, destination: str, *, dry_run: bool = False) -> Purged:
        """Delete the files whose messages every subscription has finished; no message is dropped. `destination` has no server."""
        if dry_run:
            return plan_purge(self._domain, self._store, destination, None, ())
        deleted = purge_files(self._domain, self._store, destination)
        return Purged(0, 0, deleted.purged_messages, deleted.purged_files)

    def move(
        self,
        source: str,
        target: str,
        *,
        selector: str | None = None,
        subscription: str | None = None,
        members: Iterable[int] | None = None,
        to_member: int | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        wait: DurationLike = WAIT,
    ) -> Moved:
        """Move available messages to another destination or member, each exactly once, at most `limit` of them. `subscription` is the
        topic's whose messages move. Raises InvalidSelectorError, TransferError and the errors of a full or paused target; what has
        moved by then stays moved."""
        wait_s, origin, goal = (
            seconds_of("wait", wait),
            DestinationAddress.parse(source),
            DestinationAddress.parse(target),
        )
        declared, given = self._declared(origin), _listed(members)
        order = MoveOrder(
            origin.destination,
            goal.destination,
            None if subscription is None else kept_at(declared, origin.server, subscription),
            tuple(origin.consumed(declared, given)) if given or origin.server else None,
            self._one_member(goal, to_member),
            Selector.parse(selector),
            _at_most(limit),
        )
        if dry_run:
            return plan_move(self._domain, self._store, order)
        return move(self._domain, self._store, order, wait_s)

    def redrive(
        self,
        source: str,
        *,
        to: str | None = None,
        selector: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        dry_run: bool = False,
        wait: DurationLike = WAIT,
    ) -> Redriven:
        """Bring messages of an error destination back to where they failed, or to the destination `to`, each exactly once: those
        that failed from `since` to `until`, at most `limit`. Raises InvalidSelectorError, OptionError for a time without zone, and
        what `move` raises."""
        wait_s = seconds_of("wait", wait)
        order = RedriveOrder(source, to, selector, _ms("since", since), _ms("until", until), _at_most(limit))
        if dry_run:
            return plan_redrive(self._domain, self._store, order)
        return redrive(self._domain, self._store, order, wait_s)

    def release_claim(
        self, claim: str, *destinations: str, dry_run: bool = False, wait: DurationLike = WAIT
    ) -> list[ClaimRow]:
        """Revoke a claim, live or in doubt: its consumer can no longer acknowledge it, and others get its messages, flagged as
        redelivered. Returns its parts, one per member. Raises JmsqError when these destinations (none: all) have no such claim."""
        wait_s, names = seconds_of("wait", wait), names_or_all(self._domain, destinations)
        try:
            found = find_claim(self._domain, self._store, names, claim)
        except JmsqError:
            check_answers(self._domain, self._store, names)  # else it may be there
            raise
        return found if dry_run else release_claim(self._domain, self._store, found, wait_s)

    def drop(
        self, destination: str, *, force: bool = False, dry_run: bool = False, wait: DurationLike = WAIT
    ) -> DropPlan:
        """Delete a destination with its messages and positions, or finish a drop that was interrupted. Raises
        DestinationInUseError, unless forced, while messages are unfinished or consumers live; `dry_run` tells which."""
        wait_s = seconds_of("wait", wait)
        if dry_run:
            return plan_drop(self._domain, self._store, destination, force=force)
        return drop_destination(self._domain, self._store, destination, force=force, wait_s=wait_s)

    def rename(self, old: str, new: str, *, force: bool = False) -> RenamedDestination:
        """Rename a destination; no data moves, and positions, claims and checkpoints stay valid. Raises DestinationInUseError,
        unless forced, while consumers live."""
        return rename_destination(self._domain, self._store, old, new, force=force)

    def stop_server(self, server: str) -> list[str]:
        """Take a server out of use: its messages wait. Returns the destinations that have changed. Raises DomainError."""
        return stop_server(self._domain, server)

    def start_server(self, server: str) -> list[str]:
        """Take a stopped server back into use. Returns the destinations that have changed. Raises DomainError."""
        return start_server(self._domain, server)

    def housekeep(self, *destinations: str) -> list[Round]:
        """One round of expiration, purge, compaction, checkpoints and clean-up of these destinations, or of all. Jobs and clients
        do it by themselves every 2 s; `busy` says that another process does it now. What fails is in `failures`."""
        rounds = Rounds(self._domain, self._store, clean_up=True)
        try:
            return rounds.run(names_or_all(self._domain, destinations))
        finally:
            rounds.close()

    def close(self) -> None:
        """Close the store. Repeatable."""
        if not self._closed and not self._process.is_parent:
            self._closed = True
            self._opened_store.close()

    # -- of itself ----------------------------------------------------------------------------------------------------
    @property
    def _domain(self) -> Domain:
        self._check()
        return self._known_domain

    @property
    def _store(self) -> Store:
        self._check()
        return self._opened_store

    def _check(self) -> None:
        self._process.check()
        if self._closed:
            raise ClosedError(f"the administration of {self.root} is closed: connect again")

    def _declared(self, address: DestinationAddress) -> Destination:
        return self._domain.log(address.destination).refresh().destination

    def _narrowed(self, destination: str, members: Iterable[int] | None) -> tuple[str, list[int] | None]:
        """The name, and the members that it names."""
        address, given = DestinationAddress.parse(destination), _listed(members)
        return address.destination, address.narrowed(self._declared(address), given)

    def _one_member(self, target: DestinationAddress, member: int | None) -> int | None:
        """None: the target's routing decides, also between several members on the named server."""
        found = target.narrowed(self._declared(target), None if member is None else [member])
        return found[0] if found is not None and (len(found) == 1 or target.server is None) else None


def _listed(members: Iterable[int] | None) -> list[int] | None:
    """An empty list must not mean all."""
    if members is None:
        return None
    if not isinstance(members, Iterable):
        raise OptionError(f"members is {members!r}, but must be a list of ids of members")
    if not (listed := list(members)):
        raise OptionError("members is empty: name some, or leave it out for all of them")
    return listed


def _at_most(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise OptionError(f"limit is {limit!r}, but must be a whole number, 1 or more")
    return limit


def _ms(name: str, moment: datetime | None) -> int | None:
    if moment is None:
        return None
    if not isinstance(moment, datetime):
        raise OptionError(f"{name}: {moment!r} is not a time: give a datetime with a time zone")
    if moment.tzinfo is None:
        raise OptionError(f"{name}: {moment} has no time zone: give one, such as timezone.utc")
    return round(moment.timestamp() * 1000)
