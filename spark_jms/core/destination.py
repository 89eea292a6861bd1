"""What a destination is: its kind, members and limits, and how that stands in its Delta table (C3, C16).

The declaration lives in the table's own metadata, so it changes by a commit of the same log that orders the messages:
a sender that planned on an older declaration notices when it commits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_jms.core.routing import POLICIES, Routing
from spark_jms.errors import FormatVersionError, ModuleFileError, UnreadableTableError

FORMAT_VERSION = 1
DURABILITIES = ("process", "power")
KINDS = ("queue", "distributed-queue", "topic", "distributed-topic")
QUEUE_SUBSCRIPTION = "-"  # a queue has one set of positions, under this name
MAX_MEMBERS = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}\Z")
_PREFIX = "jmsq."


@dataclass(frozen=True)
class Subscription:
    """A durable subscription: a name, where it started in each member (floor = the last sequence not wanted), and which
    messages it is for (None = all): what its selector refuses is finished for it, so all its consumers share one."""

    name: str
    floors: Mapping[int, int]
    created_ms: int
    selector: str | None = None


@dataclass(frozen=True)
class Destination:
    name: str
    kind: str
    members: int = 1
    routing: str = "round-robin"
    weights: tuple[int, ...] = ()
    max_message_bytes: int = 10 * 2**20
    retention_ms: int = 0  # how long finished messages stay for replay
    in_doubt_timeout_ms: int = 60_000
    file_grace_ms: int = 3_600_000  # removed files stay so long for running readers and time travel
    acknowledgement_retention_ms: int = 7 * 86_400_000  # how long rows of the acknowledgement table stay
    durability: str = "process"  # what a sent message survives: the death of any process, or the loss of power
    slot_members: int = 0
    epoch: int = 1
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("destination", self.name)
        if self.kind not in KINDS:
            raise ModuleFileError(
                f"destination {self.name}: kind is {self.kind!r}, but must be one of {', '.join(KINDS)}"
            )
        if not 1 <= self.members <= MAX_MEMBERS:
            raise ModuleFileError(f"destination {self.name}: members is {self.members}, but must be 1 to {MAX_MEMBERS}")
        if self.members > 1 and not self.kind.startswith("distributed-"):
            raise ModuleFileError(
                f"destination {self.name}: a {self.kind} has one member; make it a distributed-{self.kind} to have {self.members}"
            )
        if self.routing not in POLICIES:
            raise ModuleFileError(
                f"destination {self.name}: routing is {self.routing!r}, but must be one of {', '.join(POLICIES)}"
            )
        if self.durability not in DURABILITIES:
            raise ModuleFileError(
                f"destination {self.name}: durability is {self.durability!r}, but must be one of {', '.join(DURABILITIES)}"
            )
        if self.routing == "weighted" and (
            len(self.weights) != self.members or sum(self.weights) <= 0 or min(self.weights) < 0
        ):
            raise ModuleFileError(
                f"destination {self.name}: weighted routing needs {self.members} weights of 0 or more, not all 0; "
                f"got {list(self.weights)}"
            )

    @property
    def is_topic(self) -> bool:
        return self.kind.endswith("topic")

    @property
    def route(self) -> Routing:
        return Routing(self.epoch, self.members, self.routing, self.weights, self.slot_members)

    def subscription_names(self) -> list[str]:
        """Whose acknowledgement a message needs before it can go."""
        return sorted(self.subscriptions) if self.is_topic else [QUEUE_SUBSCRIPTION]

    def start_floor(self, subscription: str, member: int) -> int:
        known = self.subscriptions.get(subscription)
        return known.floors.get(member, 0) if known else 0

    def changed_to(self, new: Destination) -> Destination:
        """This destination as newly declared: the epoch rises, slots and subscriptions stay."""
        return replace(
            new, epoch=self.epoch + 1, slot_members=self.slot_members or self.members, subscriptions=self.subscriptions
        )

    def same_declaration(self, other: Destination) -> bool:
        plain = {"epoch": 0, "slot_members": 0, "subscriptions": {}}
        return replace(self, **plain) == replace(other, **plain)  # type: ignore[arg-type]

    # -- in the table's metadata ----------------------------------------------------------------------------------
    def to_configuration(self) -> dict[str, str]:
        plain = {
            "formatVersion": FORMAT_VERSION,
            "name": self.name,
            "kind": self.kind,
            "members": self.members,
            "routing": self.routing,
            "weights": list(self.weights),
            "maxMessageBytes": self.max_message_bytes,
            "retentionMs": self.retention_ms,
            "inDoubtTimeoutMs": self.in_doubt_timeout_ms,
            "fileGraceMs": self.file_grace_ms,
            "acknowledgementRetentionMs": self.acknowledgement_retention_ms,
            "durability": self.durability,
            "slotMembers": self.slot_members,
            "epoch": self.epoch,
            "subscriptions": {
                s.name: {
                    "floors": {str(m): f for m, f in s.floors.items()},
                    "createdMs": s.created_ms,
                    **({"selector": s.selector} if s.selector else {}),
                }
                for s in self.subscriptions.values()
            },
        }
        return {
            _PREFIX + key: value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            for key, value in plain.items()
        }

    @staticmethod
    def from_configuration(configuration: Mapping[str, str], where: str) -> Destination:
        """Raises UnreadableTableError when the table is not a destination, FormatVersionError when it is a newer one."""
        values = {k.removeprefix(_PREFIX): v for k, v in configuration.items() if k.startswith(_PREFIX)}
        try:
            if int(values["formatVersion"]) > FORMAT_VERSION:
                raise FormatVersionError(
                    f"{where} has format version {values['formatVersion']}, this spark-jms reads up to {FORMAT_VERSION}: "
                    "install a later spark-jms"
                )
            subscriptions = {
                name: Subscription(name, {int(m): f for m, f in s["floors"].items()}, s["createdMs"], s.get("selector"))
                for name, s in json.loads(values["subscriptions"]).items()
            }
            return Destination(
                name=values["name"],
                kind=values["kind"],
                members=int(values["members"]),
                routing=values["routing"],
                weights=tuple(json.loads(values["weights"])),
                max_message_bytes=int(values["maxMessageBytes"]),
                retention_ms=int(values["retentionMs"]),
                in_doubt_timeout_ms=int(values["inDoubtTimeoutMs"]),
                file_grace_ms=int(values["fileGraceMs"]),
                acknowledgement_retention_ms=int(
                    values.get("acknowledgementRetentionMs", Destination.acknowledgement_retention_ms)
                ),
                durability=values.get("durability", Destination.durability),
                slot_members=int(values["slotMembers"]),
                epoch=int(values["epoch"]),
                subscriptions=subscriptions,
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise UnreadableTableError(
                f"{where} is a Delta table but not a spark-jms destination (its metadata lacks or garbles {error}): "
                "create destinations with `jmsq apply`"
            ) from error


def check_name(what: str, name: str) -> None:
    if not _NAME.match(name):
        raise ModuleFileError(
            f"{name!r} cannot be the name of a {what}: use 1 to 128 letters, digits, '_', '.' or '-', beginning with a letter or digit"
        )


def record_name(destination: str, subscription: str, member: int) -> str:
    """The record set's name in the store."""
    return f"{destination}/{subscription}/{member}"
