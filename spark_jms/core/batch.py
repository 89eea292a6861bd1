"""A batch as a Spark offset, and the limits and shares by which it is made.

Features: C5, C6 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from spark_jms.core.ranges import Ranges
from spark_jms.errors import FormatVersionError, OffsetError

OFFSET_VERSION = 3  # of offsets with messages of an earlier claim; all others have 2
MAX_RANGES_PER_MEMBER = 20_000  # keeps an offset small; the next batch takes the rest


@dataclass(frozen=True)
class MemberPick:
    """One member's part of a batch. `redelivered` maps a delivery count above 1 to its messages. `claim` is an earlier claim
    whose messages were delivered with an earlier batch and cannot be acknowledged yet, because the member's server is down;
    "": the batch's own."""

    epoch: int
    picks: Ranges
    redelivered: Mapping[int, Ranges] = field(default_factory=dict)
    claim: str = ""


@dataclass(frozen=True)
class Batch:
    """Everything a task needs to produce the batch again. The first offset of a query has a consumer and no claim. `table`
    is the id of the destination's table; offsets of version 1 have none."""

    consumer: str
    claim: str = ""
    members: Mapping[int, MemberPick] = field(default_factory=dict)
    table: str = ""

    @property
    def count(self) -> int:
        """Of the messages that this batch delivers."""
        return sum(pick.picks.count for pick in self.delivered.values())

    @property
    def delivered(self) -> dict[int, MemberPick]:
        """What this batch delivers, by member."""
        return {member: pick for member, pick in self.members.items() if not pick.claim}

    def carried(self, members: Iterable[int]) -> dict[int, MemberPick]:
        """These members' messages, as a later batch names them while they are not acknowledged."""
        kept = set(members)
        return {m: replace(p, claim=p.claim or self.claim) for m, p in self.members.items() if m in kept}

    def without(self, members: Collection[int]) -> Batch:
        """Without what the batch itself delivers of these members; what it carries of them stays."""
        return replace(self, members={m: p for m, p in self.members.items() if p.claim or m not in members})

    def part(self, members: Iterable[int]) -> Batch:
        """Of these members, which are on one server: their messages and the claim that these belong to."""
        own = self.carried(members)
        claim = next((pick.claim for pick in own.values()), self.claim)
        return Batch(self.consumer, claim, {m: replace(pick, claim="") for m, pick in own.items()}, self.table)

    def to_json(self) -> dict[str, object]:
        """With keys in a fixed order, so that Spark takes equal batches for equal offsets."""
        members = {}
        for member, pick in sorted(self.members.items()):
            entry: dict[str, object] = {"epoch": pick.epoch, "pick": pick.picks.to_json()}
            if pick.redelivered:
                entry["redelivered"] = {str(count): r.to_json() for count, r in sorted(pick.redelivered.items())}
            if pick.claim:
                entry["claim"] = pick.claim
            members[str(member)] = entry
        return {
            "v": OFFSET_VERSION if any(pick.claim for pick in self.members.values()) else 2,
            "table": self.table,
            "consumer": self.consumer,
            "claim": self.claim,
            "members": members,
        }

    @staticmethod
    def from_json(value: object) -> Batch:
        """Raises OffsetError (damaged, or of another source) or FormatVersionError (of a newer spark-jms)."""
        if not isinstance(value, dict) or not {"v", "consumer", "claim", "members"} <= value.keys():
            raise OffsetError(
                f"the offset in the checkpoint is not one of spark-jms: {str(value)[:200]!r}. Use the checkpointLocation "
                "that belongs to this query, or a fresh one."
            )
        if type(value["v"]) is int and value["v"] > OFFSET_VERSION:
            raise FormatVersionError(
                f"the checkpoint's offset has version {value['v']}, this spark-jms reads up to {OFFSET_VERSION}: "
                "install a later spark-jms"
            )
        try:
            members = {
                int(member): MemberPick(
                    int(entry["epoch"]),
                    Ranges.from_json(entry["pick"]),
                    {int(count): Ranges.from_json(r) for count, r in entry.get("redelivered", {}).items()},
                    str(entry.get("claim", "")),
                )
                for member, entry in value["members"].items()
            }
            table = "" if value["v"] == 1 else value["table"]
            if not all(isinstance(text, str) for text in (value["consumer"], value["claim"], table)):
                raise ValueError("consumer, claim and table must be text")
            return Batch(value["consumer"], value["claim"], members, table)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OffsetError(
                f"the offset in the checkpoint is damaged ({error}): {str(value)[:200]!r}. Restore the checkpoint from a "
                "copy, or start with a fresh checkpointLocation."
            ) from error


def claim_id(number: int, token: str) -> str:
    """The numbers of a query's claims rise and never repeat, so an id tells whether it is older than the query's newest
    acknowledgement."""
    return f"{number}-{token}"


def claim_number(claim: str) -> int:
    """0 for no claim, and for claims of old versions, which have no number."""
    number, dash, _ = claim.partition("-")
    return int(number) if dash and number.isdigit() else 0


@dataclass(frozen=True)
class Limits:
    """Admission control. None = no limit. A batch waits for `min_messages`: at most `linger_ms` from the first message on, or,
    if that is None, at most `max_delay_ms` from the batch before. A consumer shows the messages of `first_member` and the members
    behind it first."""

    max_messages: int | None = None
    max_bytes: int | None = None
    min_messages: int = 1
    max_delay_ms: int = 900_000
    linger_ms: int | None = None
    first_member: int = 0

    def allow(self, available: int, waited_ms: float, *, draining: bool) -> bool:
        """A batch of so many messages may be made now. `draining`: what is there is taken, however little."""
        return available > 0 and (draining or available >= self.min_messages or waited_ms >= self.max_delay_ms)


def fair_shares(limit: int, wanted: Mapping[int, int]) -> dict[int, int]:
    """Share `limit` among members that want so many each. No member gets more than it wants, nothing is left over while
    a member wants more, and the shares of two members differ by more than 1 only if the smaller one wants no more."""
    shares = dict.fromkeys(wanted, 0)
    hungry = sorted((count, member) for member, count in wanted.items() if count > 0)
    left = limit
    for i, (count, member) in enumerate(hungry):
        share = min(count, -(-left // (len(hungry) - i)) if i < len(hungry) - 1 else left)
        shares[member] = share
        left -= share
    return shares
