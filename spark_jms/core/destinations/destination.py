"""A destination: its settings and subscriptions, and how its Delta table stores them.

The settings are declared in `spark_jms/settings/destination.py`. They live in the table's own metadata, so they change by
a commit to the log that orders the messages: a sender that planned on older settings notices when it commits.

Features: C3, C15, C16, T5, T8, T14 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import attrs

from spark_jms.core.destinations.pause import INSERTION, PRODUCTION, Pauses
from spark_jms.core.destinations.servers import HOME, NO_OUTAGES, LeaseTerm, Outages, Placement, placed_on
from spark_jms.core.ordering.units_of_order import Barrier, SlotMap, paths_of_lost
from spark_jms.errors import (
    DestinationPausedError,
    FormatVersionError,
    InsertionPausedError,
    InvalidDestinationError,
    ModuleFileError,
    ProductionPausedError,
    ServerDownError,
    ServerLostError,
    UnreadableTableError,
)
from spark_jms.settings.destination import (
    PATH_SERVICE,
    SYSTEM_GENERATED,
    DestinationSettings,
    contradiction,
    from_metadata,
    to_metadata,
)
from spark_jms.settings.fields import DISCARD
from spark_jms.settings.quota import SERVER_QUOTA

# Of tables that have or had compressed bodies. Those with a quota, or whose expired messages are logged or redirected, have 6,
# those with a path service, or with a life-cycle log now or before, 5, those with units of work, or with slots that have moved, 4,
# replicated topics 3, others with servers 2, all others 1.
FORMAT_VERSION = 7
QUEUE_SUBSCRIPTION = "-"  # a queue has one set of positions, under this name
TEMPORARY_PREFIX = "jmsq-temporary-"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_PREFIX = "jmsq."


@dataclass(frozen=True)
class Subscription:
    """A subscription, as a table has a durable one. `floors`: for each member, the last sequence before it began. `selector`
    picks its messages (None: all); messages it refuses are finished for the subscription, so all its consumers share
    one selector. `only`: the members that its consumers take, if it is not durable (None: all); it has nothing of the others."""

    name: str
    floors: Mapping[int, int]
    created_ms: int
    selector: str | None = None
    only: frozenset[int] | None = None

    def floor(self, member: int, last: int) -> int:
        """Up to here it has nothing to consume in the member, whose last sequence is `last`."""
        return self.floors.get(member, 0) if self.only is None or member in self.only else last


@attrs.frozen
class Destination(DestinationSettings):
    """The declared settings, and what spark-jms adds to them. `placement`: of a destination that targets servers; it is made
    with the table. ModuleFileError names the setting that is wrong."""

    slot_members: int = 0
    epoch: int = 1
    subscriptions: Mapping[str, Subscription] = attrs.field(factory=dict)
    pauses: Pauses = attrs.field(factory=Pauses)
    placement: Placement | None = None
    stopped: Mapping[str, int] = attrs.field(factory=dict)  # server that an administrator has stopped -> since when, ms
    terms: Mapping[str, LeaseTerm] = attrs.field(factory=dict)  # server -> the newest term of its lease, as known here
    outages: Outages = NO_OUTAGES  # of a replicated topic
    slots: SlotMap | None = None  # once slots of units of order have moved
    has_compressed: bool = False  # messages with compressed bodies are or were in the table
    leaving: frozenset[int] = frozenset()  # members that are to be removed and still have messages
    limited: frozenset[str] = frozenset()  # servers whose quota counts its members, because it has none of its own
    follows_servers: bool = False  # `servers: all`: its servers are all that the domain has
    compressions: Mapping[str, str] = attrs.field(factory=dict)  # server -> how bodies are compressed there by default
    was_logged: bool = False  # the life-cycle log was on in an earlier declaration
    paths: Mapping[str, int] = attrs.field(
        factory=dict, eq=False
    )  # unit of order -> member: `UnitPaths`; not in the metadata

    def __attrs_post_init__(self) -> None:
        check_name("destination", self.name)
        if found := contradiction(self):
            raise ModuleFileError(f"destination {self.name}: {found[1]}")
        if self.servers and self.placement is None:
            object.__setattr__(self, "placement", Placement.first(self.servers))

    @property
    def is_topic(self) -> bool:
        return self.kind.endswith("topic")

    @property
    def is_replicated(self) -> bool:
        """A topic whose subscriptions are each on one server: subscriptions.py."""
        return self.forwarding == "replicated"

    @property
    def has_life_cycle(self) -> bool:
        """The life-cycle log is on, or was: it has a table, and record sets have positions in it (records/life_cycle.py)."""
        return self.message_logging_enabled or self.was_logged

    @property
    def measures_usage(self) -> bool:
        return super().measures_usage or bool(self.limited)

    def quota_of(self, member: int) -> str | None:
        """The name of the quota in which the member's messages count."""
        if self.quota is not None or not self.limited:
            return self.quota
        server = self.server_of(member)
        return SERVER_QUOTA + server if server in self.limited else None

    @property
    def quotas(self) -> set[str]:
        """The names of all quotas in which its messages count."""
        return {quota for member in self.member_ids if (quota := self.quota_of(member)) is not None}

    def compression_on(self, member: int) -> str | None:
        """How its server compresses bodies by default; None: not."""
        return self.compressions.get(self.server_of(member))

    def part_name(self, member: int) -> str:
        """Of a member, for people."""
        if len(self.member_ids) == 1:
            return self.name
        return f"{self.server_of(member)}@{self.name}" if self.placement else f"member {member} of {self.name}"

    def default_unit(self, producer: str, of_factory: str | None = None) -> str | None:
        """The unit of order of a producer's messages that have none; `producer` is a name that no other producer has. `of_factory`:
        that of its connection factory, which comes first. A destination that forwards, or handles units of work, has no units of
        order, so it ignores that one."""
        ignores = of_factory is None or self.handles_units_of_work or self.forward_delay_ms is not None
        unit = self.default_unit_of_order if ignores else of_factory
        return f"jmsq-producer-{producer}" if unit == SYSTEM_GENERATED else unit

    @property
    def member_ids(self) -> Sequence[int]:
        return self.placement.ids if self.placement else range(self.members)

    @property
    def first_members(self) -> int:
        """How many it was created with."""
        return self.slot_members or self.members

    @property
    def can_lose_members(self) -> bool:
        """A member with units of order stays, unless the destination targets servers."""
        return self.placement is not None or self.slots is not None or self.members > self.first_members

    def server_of(self, member: int) -> str:
        """Of a removed member: HOME."""
        return self.placement.servers.get(member, HOME) if self.placement else HOME

    def members_on(self, server: str) -> list[int]:
        return [member for member in self.member_ids if self.server_of(member) == server]

    def servers_in_use(self) -> list[str]:
        """Those with members, in the order of the members."""
        return [server for _, server in self.placement.members] if self.placement else [HOME]

    @property
    def down(self) -> dict[str, int]:
        """server -> since when it is down, ms: stopped by an administrator, or away so long that its lease has lapsed."""
        found = dict(self.stopped)
        for server, term in self.terms.items():
            if term.lapsed_ms is not None:
                found[server] = min(found.get(server, term.lapsed_ms), term.lapsed_ms)
        return found

    @property
    def down_members(self) -> frozenset[int]:
        """Those that get no messages because their server is down. A replicated topic has none: whatever member a message is
        stored in, it reaches all servers."""
        return frozenset() if self.is_replicated else frozenset(m for s in self.down for m in self.members_on(s))

    @property
    def reachable_members(self) -> Sequence[int]:
        """Those that messages may go to, whatever is paused; all of them when every server is down."""
        down = self.down_members
        return [member for member in self.member_ids if member not in down] or self.member_ids

    @property
    def slot_map(self) -> SlotMap:
        if self.slots is not None:
            return self.slots
        return SlotMap.of(self._first_slots)

    @property
    def _first_slots(self) -> Sequence[int]:
        """The pattern of slots as long as none has moved to a new member: `SlotMap.of`."""
        return self.placement.slots if self.placement else range(self.first_members)

    def barriers_before(self, subscription: str, member: int, floors: Mapping[int, int] | None = None) -> list[Barrier]:
        """On the way of this subscription's units of order on the member. `floors`: see `start_floor`."""
        if self.slots is None:
            return []
        return self.slots.before(member, subscription, lambda m: self.start_floor(subscription, m, floors))

    def barriers_behind(self, subscription: str, member: int, floors: Mapping[int, int] | None = None) -> list[Barrier]:
        """That wait for what this subscription has on the member."""
        if self.slots is None:
            return []
        return self.slots.behind(member, subscription, lambda m: self.start_floor(subscription, m, floors))

    def with_leaving(self, leaving: Collection[int], last: Callable[[int], int]) -> Destination:
        """These members get nothing new, and their slots move to the others, if they may (`SlotMap`); units of work stay."""
        staying = [member for member in self.member_ids if member not in leaving]
        slots = self.slots
        if not self.handles_units_of_work:
            slots = self.slot_map.shared(staying, self.member_ids, last, paths_of_lost(self.paths, staying))
        return attrs.evolve(self, leaving=frozenset(leaving), slots=slots, epoch=self.epoch + 1)

    def with_barriers(self, slots: SlotMap, last: Callable[[int], int]) -> Destination:
        """After some are passed or forgotten: slots follow that had to stay because of them."""
        if not self.handles_units_of_work:
            staying = [member for member in self.member_ids if member not in self.leaving]
            followed = slots.shared(staying, self.member_ids, last)
            if followed.owners != slots.owners:
                return attrs.evolve(self, slots=followed, epoch=self.epoch + 1)
        return attrs.evolve(self, slots=slots)

    def check_up(self, members: Iterable[int]) -> None:
        """Raises ServerDownError when one of these members is on a server that is down, and ServerLostError, which is one, when
        an administrator has not stopped it; of a replicated topic, when all servers are."""
        found = self.down
        if not found or (self.is_replicated and set(self.servers_in_use()) - found.keys()):
            return
        down = sorted({self.server_of(member) for member in members} & found.keys())
        if down:
            first = down[0]
            why = (
                f"an administrator has stopped server {first}: send again after `jmsq server start {first}`"
                if first in self.stopped
                else f"server {first} is away: send again when its store answers; `jmsq server list` shows it"
            )
            error = ServerDownError if first in self.stopped else ServerLostError
            raise error(
                f"{self.name}: nothing was committed, because the messages belong to server {', '.join(down)} by their address or "
                f"unit of order, or no other server is up. {why[0].upper()}{why[1:]}"
            )

    def check_member(self, member: int) -> int:
        """Raises InvalidDestinationError, which names the members."""
        if member not in self.member_ids:
            there = ", ".join(map(str, self.member_ids)) if self.placement else f"0 to {self.members - 1}"
            raise InvalidDestinationError(f"{self.name} has the members {there}, not {member}")
        return member

    def subscription_names(self) -> list[str]:
        """The subscriptions that must acknowledge a message before it may be purged."""
        return sorted(self.subscriptions) if self.is_topic else [QUEUE_SUBSCRIPTION]

    def refuse_subscription(self, subscription: str | None) -> None:
        """Raises InvalidDestinationError for a queue and a subscription: to ignore the name would take every message."""
        if subscription is not None and not self.is_topic:
            raise InvalidDestinationError(
                f"{self.name} is a {self.kind} and has no subscription {subscription!r}: leave the subscription out, or "
                "name a topic"
            )

    def start_floor(self, subscription: str, member: int, floors: Mapping[int, int] | None = None) -> int:
        """The last sequence before the subscription began. `floors`: of one that is not durable, which the table does not know."""
        if floors is None:
            known = self.subscriptions.get(subscription)
            floors = known.floors if known else {}
        return floors.get(member, 0)

    def changed_to(
        self, new: Destination, used: Iterable[int] = (), last: Callable[[int], int] = lambda member: 0
    ) -> Destination:
        """This destination with newly declared settings: the epoch rises; ids, subscriptions and pauses stay, and slots move when
        the members change. `used` are members that had messages before, `last` is a member's last sequence. Raises
        InvalidDestinationError."""
        placement = None
        if new.servers:
            members = [(member, self.server_of(member)) for member in self.member_ids]
            known = self.placement.next_id if self.placement else max([self.members - 1, *used]) + 1
            placement = placed_on(new.servers, members, self._first_slots, known)
        elif self.placement:
            raise InvalidDestinationError(
                f"destination {self.name} has its members on servers and cannot return to `members`: declare its `servers`; "
                f"`servers: [{HOME}]` is the domain's own store"
            )
        ids = placement.ids if placement else range(new.members)
        return attrs.evolve(
            new,
            placement=placement,
            stopped={server: since for server, since in self.stopped.items() if server in new.servers},
            terms={server: term for server, term in self.terms.items() if server in new.servers},
            epoch=self.epoch + 1,
            slot_members=self.first_members,
            subscriptions=self.subscriptions,
            pauses=self.pauses.within(ids),
            outages=self.outages,
            has_compressed=self.has_compressed,
            limited=self.limited,
            compressions=self.compressions,
            slots=self._slots_of(new, ids, last),
            was_logged=self.has_life_cycle,
            paths=self.paths,
        )

    def _slots_of(self, new: Destination, ids: Sequence[int], last: Callable[[int], int]) -> SlotMap | None:
        if set(ids) == set(self.member_ids) and not self.leaving:
            return self.slots
        if new.handles_units_of_work:
            return None if self.slots is None else self.slots.inherited(ids)
        return self.slot_map.shared(ids, ids, last)

    def same_declaration(self, other: Destination) -> bool:
        same = self.name == other.name and self.follows_servers == other.follows_servers
        return same and to_metadata(self) == to_metadata(other)

    # -- pauses ---------------------------------------------------------------------------------------------
    def check_production(self, members: Iterable[int], planned_epoch: int) -> None:
        """For a sender that planned by `planned_epoch` and has messages for these members. Raises ProductionPausedError,
        or InsertionPausedError, which may pass."""
        if not self.pauses:
            return
        concerned = sorted(set(members))
        self._refuse(
            PRODUCTION,
            ProductionPausedError,
            (m for m in concerned if (found := self.pauses.find(PRODUCTION, m)) and found.epoch <= planned_epoch),
        )
        self.check_insertion(concerned)

    def check_insertion(self, members: Iterable[int]) -> None:
        """Raises InsertionPausedError when one of these members is paused for insertion."""
        if self.pauses:
            paused = (m for m in sorted(set(members)) if self.pauses.find(INSERTION, m))
            self._refuse(INSERTION, InsertionPausedError, paused)

    def due_ms(self, member: int, now_ms: int) -> int:
        """Delays that end later keep their messages back: now, or the beginning of an insertion pause."""
        stopped = self.pauses.find(INSERTION, member) if self.pauses else None
        return now_ms if stopped is None else min(now_ms, stopped.since_ms)

    def _refuse(self, operation: str, kind: type[DestinationPausedError], members: Iterable[int]) -> None:
        refused = list(members)
        if not refused:
            return
        whole = any(pause.operation == operation and pause.member is None for pause in self.pauses.all)
        of_server = self.pauses.find(operation, refused[0])
        server = None if whole or of_server is None else of_server.server
        member = "" if whole else f" --member {refused[0]}"
        scope = f"{self.name}{member}" if server is None else f"--server {server}"
        what = self.name if whole else f"{self.name}, member {', '.join(map(str, refused))}"
        of = "" if server is None else f" of server {server}"
        raise kind(
            f"{what}: an administrator has paused {operation}{of}; nothing was committed. Try again after `jmsq resume {scope} "
            f"--{operation}`; `jmsq stat {self.name}` shows the pauses"
        )

    # -- in the table's metadata ----------------------------------------------------------------------------------
    def to_configuration(self) -> dict[str, str]:
        subscriptions = {
            s.name: {
                "floors": {str(m): f for m, f in s.floors.items()},
                "createdMs": s.created_ms,
                **({"selector": s.selector} if s.selector else {}),
            }
            for s in self.subscriptions.values()
        }
        terms = {server: term.to_json() for server, term in self.terms.items()}
        stored = {
            "formatVersion": str(self._format_version),
            "name": self.name,
            **to_metadata(self),
            "slotMembers": str(self.slot_members),
            "epoch": str(self.epoch),
            "subscriptions": json.dumps(subscriptions, sort_keys=True),
            "paused": json.dumps(self.pauses.to_json(), sort_keys=True),
            **({"placement": json.dumps(self.placement.to_json())} if self.placement else {}),
            **({"down": json.dumps(dict(self.stopped), sort_keys=True)} if self.placement else {}),
            **({"leaseTerms": json.dumps(terms, sort_keys=True)} if self.placement else {}),
            **({"outages": json.dumps(self.outages.to_json())} if self.is_replicated else {}),
            **({"slotMap": json.dumps(self.slots.to_json())} if self.slots else {}),
            **({"compressedBodies": "true"} if self.has_compressed else {}),
            **({"leaving": json.dumps(sorted(self.leaving))} if self.leaving else {}),
            **({"limitedServers": json.dumps(sorted(self.limited))} if self.limited else {}),
            **({"wasLogged": "true"} if self.was_logged else {}),
            **({"followsServers": "true"} if self.follows_servers else {}),
            **(
                {"serverCompressions": json.dumps(dict(self.compressions), sort_keys=True)} if self.compressions else {}
            ),
        }
        return {_PREFIX + key: value for key, value in stored.items()}

    @property
    def _format_version(self) -> int:
        if self.has_compressed:
            return FORMAT_VERSION
        if self.quota is not None or self.limited or self.expiration_policy != DISCARD:
            return 6
        if self.unit_of_order_routing == PATH_SERVICE or self.paths or self.has_life_cycle:
            return 5
        if self.slots is not None or self.leaving or self.handles_units_of_work:
            return 4
        return 3 if self.is_replicated else 2 if self.placement else 1

    @staticmethod
    def from_configuration(configuration: Mapping[str, str], where: str) -> Destination:
        """Raises UnreadableTableError when the table is not a destination, FormatVersionError when it is a newer one."""
        stored = {k.removeprefix(_PREFIX): v for k, v in configuration.items() if k.startswith(_PREFIX)}
        try:
            if int(stored["formatVersion"]) > FORMAT_VERSION:
                raise FormatVersionError(
                    f"{where} has format version {stored['formatVersion']}, this spark-jms reads up to {FORMAT_VERSION}: "
                    "install a later spark-jms"
                )
            subscriptions = {
                name: Subscription(name, {int(m): f for m, f in s["floors"].items()}, s["createdMs"], s.get("selector"))
                for name, s in json.loads(stored["subscriptions"]).items()
            }
            return Destination(
                name=stored["name"],
                **from_metadata(stored),
                slot_members=int(stored["slotMembers"]),
                epoch=int(stored["epoch"]),
                subscriptions=subscriptions,
                pauses=Pauses.from_json(json.loads(stored.get("paused", "[]"))),
                placement=_placement(stored),
                stopped={str(server): int(since) for server, since in json.loads(stored.get("down", "{}")).items()},
                terms={s: LeaseTerm.from_json(term) for s, term in json.loads(stored.get("leaseTerms", "{}")).items()},
                outages=Outages.from_json(json.loads(stored.get("outages", "[]"))),
                slots=SlotMap.from_json(json.loads(stored["slotMap"])) if "slotMap" in stored else None,
                has_compressed=json.loads(stored.get("compressedBodies", "false")) is True,
                leaving=frozenset(json.loads(stored.get("leaving", "[]"))),
                limited=frozenset(json.loads(stored.get("limitedServers", "[]"))),
                was_logged=json.loads(stored.get("wasLogged", "false")),
                compressions={str(s): str(o) for s, o in json.loads(stored.get("serverCompressions", "{}")).items()},
                follows_servers=json.loads(stored.get("followsServers", "false")) is True,
            )
        except (KeyError, ValueError, TypeError, AttributeError, ModuleFileError) as error:
            raise UnreadableTableError(
                f"{where} is a Delta table but not a spark-jms destination (its metadata lacks or garbles {error}): "
                "create destinations with `jmsq apply`"
            ) from error


def _placement(stored: Mapping[str, str]) -> Placement | None:
    targets = "servers" in stored and json.loads(stored["servers"])
    return Placement.from_json(json.loads(stored["placement"])) if targets else None


def is_temporary(name: str) -> bool:
    """A name that a context has given to a temporary destination. What is not a name is none."""
    return isinstance(name, str) and name.startswith(TEMPORARY_PREFIX)


def check_name(what: str, name: str) -> None:
    if not isinstance(name, str) or not _NAME.match(name):
        raise ModuleFileError(
            f"{name!r} cannot be the name of a {what}: use 1 to 128 letters, digits, '_', '.' or '-', beginning with a letter or digit"
        )
