"""The limits of a domain's destinations: which quotas count them, and whether they tell their senders to slow down.

A destination counts in its own quota, or in those of its servers, as its table says. `apply` makes the tables follow the quotas that
it changes, and counts what the destinations hold. core/limits/quota.py has the theory.

core/limits/flow_control.py has the rule of flow control. Thresholds of a destination are those of each of its members, and a server's
those of all that its members hold; both are measured from the tables, and from what processes with consumers have published
(log/limits/usage.py). A FlowWatch looks once a second at most, while its process sends, and not at all where there are no thresholds.

Features: T1, T5 (docs/FEATURES.md)
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import attrs

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.limits.flow_control import NO_THRESHOLDS, UNARMED, Arming, FlowThresholds, thresholds_of
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.errors import InvalidDestinationError, JmsqError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.destinations.servers import home_entry
from spark_jms.log.tables.commit import Decision, commit, metadata_action
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.snapshot import Snapshot

log = logging.getLogger("spark_jms")
LOOK_EVERY_S = 1.0
SERVERS_KEPT_S = 60.0
SHARE_OF_TIME = 0.05  # that looks may take


# -- quotas ------------------------------------------------------------------------------------------------------------


def follow_quota(domain: Domain, wanted: Destination) -> None:
    """What an existing destination holds counts in the ledger of its quota from now on. Repeatable. The ledger of an earlier one
    drops it when it looks at the destination."""
    if wanted.quota is not None:
        domain.quotas.observe(wanted.name)


def follow_sharing(domain: Domain, quota: str) -> None:
    """After a change of `shared` its destinations count in other ledgers, also those that the module file leaves out; and what senders
    have reserved in the former ones is void. Repeatable: an interrupted `apply` leaves the former ledgers, which tell the next one."""
    outdated = domain.quotas.outdated_ledgers(quota)
    for name in domain.destinations() if outdated else ():
        if commit(domain.log(name), partial(_decide_void, quota)) is not None:
            domain.quotas.observe(name)
    for ledger in outdated:
        ledger.delete()


def _decide_void(quota: str, snapshot: Snapshot) -> Decision | None:
    """Pure. Grants are of the epoch before. None when the destination has another quota."""
    declared = snapshot.destination
    if quota not in declared.quotas:
        return None
    after = attrs.evolve(declared, epoch=declared.epoch + 1)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])


def follow_server_quotas(domain: Domain) -> None:
    """Every destination without a quota of its own counts in those of its servers that have one, temporary ones too. Repeatable:
    after an interrupted `apply`, the next one does the rest."""
    limited = limited_servers(domain)
    if limited is None:
        return
    for name in domain.destinations():
        _follow_servers(domain, domain.log(name), limited)
    for entry in domain.temporary.entries():
        try:
            follow_home_quota(domain, domain.temporary.log(entry.name))
        except (JmsqError, OSError) as error:  # its context's, which may have died: it prevents no change of others
            log.warning("%s does not follow the quota of %s: %s", entry.name, HOME, error)


def limited_servers(domain: Domain) -> set[str] | None:
    """The servers that have a quota now; None: none ever had one."""
    known = domain.quotas.server_quotas()
    return {server for server, quota in known.items() if quota.has_maximum} if known else None


def follow_home_quota(domain: Domain, table: DeltaLog) -> None:
    """Of a temporary destination: its context when it has made it, and `apply` when the quota has changed. Whichever comes second
    sees what the other has written. Nothing happens when the destination has ended."""
    limited = limited_servers(domain)
    if limited is not None:
        with suppress(InvalidDestinationError):
            _follow_servers(domain, table, limited)


def _follow_servers(domain: Domain, table: DeltaLog, limited: Set[str]) -> None:
    if commit(table, partial(decide_limited, limited)) is not None or not domain.quotas.knows(table.name):
        domain.quotas.observe(table.name)


def decide_limited(limited: Set[str], snapshot: Snapshot) -> Decision | None:
    """Pure. `limited`: the servers that have a quota. None when the destination knows them."""
    declared = snapshot.destination
    concerned = frozenset(limited & set(declared.servers_in_use())) if declared.quota is None else frozenset()
    if concerned == declared.limited:
        return None
    after = attrs.evolve(declared, limited=concerned, epoch=declared.epoch + 1)
    return Decision("SET TBLPROPERTIES", [metadata_action(snapshot, after)])


# -- flow control ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched:
    """A destination or a server. `usages` has what each part of it holds, by the name that people see: a destination has its members,
    a server is one part. It raises JmsqError or OSError when that cannot be read."""

    name: str
    thresholds: Callable[[], FlowThresholds]
    usages: Callable[[], Mapping[str, MessageUsage]]

    def after(self, before: Mapping[str, Arming]) -> dict[str, Arming]:
        """Whether its parts are armed now. `before`: of parts of this and of others. What changes is logged."""
        thresholds = self.thresholds()
        try:
            usages = self.usages() if thresholds else {}
        except (JmsqError, OSError) as error:
            log.warning("%s: its usage cannot be read, so flow control stays as it is: %s", self.name, error)
            return {part: arming for part, arming in before.items() if self._has(part)}
        found = {}
        for part, used in usages.items():
            was = before.get(part, UNARMED)
            found[part] = now = was.after(thresholds, used.messages, used.bytes)
            _tell(part, "messages", used, was=was.messages, armed=now.messages)
            _tell(part, "bytes", used, was=was.bytes, armed=now.bytes)
        return found

    def _has(self, part: str) -> bool:
        return part == self.name or part.endswith((f"@{self.name}", f" of {self.name}"))


def _tell(part: str, measure: str, used: MessageUsage, *, was: bool, armed: bool) -> None:
    held = f"{used.messages:,} messages, {used.bytes:,} bytes"
    if armed and not was:
        log.warning("%s exceeds its %sThresholdHigh: senders slow down (%s)", part, measure, held)
    elif was and not armed:
        log.info("%s is below its %sThresholdLow: senders may go faster (%s)", part, measure, held)


class FlowWatch:
    """Whether a member, or a server that it is on, tells its senders to slow down. Of the members and servers that one address may
    use, for the senders of one process. Thread-safe. One that begins while the usage is between low and high takes them for
    unarmed."""

    def __init__(
        self, watched: Callable[[], Sequence[Watched]], monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._watched, self._monotonic_s = watched, monotonic_s
        self._armed: Mapping[str, Arming] = {}
        self._next_look_s = float("-inf")
        self._lock = threading.Lock()

    @property
    def has_thresholds(self) -> bool:
        return any(one.thresholds() for one in self._watched())

    def armed(self) -> bool:
        """As of the last second, or of twenty times as long as a look takes."""
        with self._lock:
            if not self.has_thresholds:
                self._armed, self._next_look_s = {}, float("-inf")
            elif (begun_s := self._monotonic_s()) >= self._next_look_s:
                self._armed = armed_after(self._watched(), self._armed)
                ended_s = self._monotonic_s()
                self._next_look_s = begun_s + max(LOOK_EVERY_S, (ended_s - begun_s) / SHARE_OF_TIME)
            return any(self._armed.values())


def armed_after(watched: Iterable[Watched], before: Mapping[str, Arming]) -> dict[str, Arming]:
    """Which of their parts are armed now."""
    return {part: arming for one in watched for part, arming in one.after(before).items()}


# -- what the senders of a domain watch --------------------------------------------------------------------------------

_known: dict[tuple[str, str], tuple[float, FlowThresholds]] = {}  # of servers: until when, what


def watched_of(domain: Domain, table: DeltaLog, server: str | None = None) -> list[Watched]:
    """A destination and its servers, or its member on one server, and that server, for senders that name it. The destination's
    thresholds are those of its newest known snapshot, a server's those of the last minute. Nothing is read before the thresholds of
    a server are asked for."""
    used = partial(_usages, domain, table, server)
    found = [Watched(table.name, lambda: thresholds_of(table.snapshot.destination), used)]
    for one in table.snapshot.destination.servers_in_use() if server is None else [server]:
        name = f"server {one}"
        found.append(Watched(name, partial(_of_server, domain, one), partial(_usage_of_server, domain, one, name)))
    return found


def _usages(domain: Domain, table: DeltaLog, server: str | None) -> dict[str, MessageUsage]:
    found, declared = domain.usages_of_members(table.name), table.snapshot.destination
    members = [member for member in found if server in (None, declared.server_of(member))]
    return {declared.part_name(member): found[member] for member in members}


def _usage_of_server(domain: Domain, server: str, name: str) -> dict[str, MessageUsage]:
    return {name: domain.usage_of_server(server)}


def publishes_usage(domain: Domain, destination: Destination) -> bool:
    """Its senders, or those of other destinations on its servers, have to know what it holds."""
    return destination.measures_usage or any(_of_server(domain, server) for server in destination.servers_in_use())


def _of_server(domain: Domain, server: str) -> FlowThresholds:
    """Read once a minute by a process, as each send asks; those of HOME are known since the domain was opened. They stay as they are
    while they cannot be read, since flow control never fails a send."""
    key, now_s = (domain.root, server), time.monotonic()
    until_s, thresholds = _known.get(key, (0.0, NO_THRESHOLDS))
    if now_s >= until_s:
        try:
            if server == HOME:
                thresholds = home_entry(domain.declared_now() if key in _known else domain.declaration).thresholds
            else:
                thresholds = domain.servers.entry(server).thresholds
        except (JmsqError, OSError, ValueError) as error:
            log.warning("server %s: its thresholds cannot be read, so flow control stays as it is: %s", server, error)
        _known[key] = (now_s + SERVERS_KEPT_S, thresholds)
    return thresholds
