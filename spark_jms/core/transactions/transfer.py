"""Transfers: messages that move from a record set to other destinations, all or none, exactly once.

A transfer is an *intent* in the origin's record set. It names the messages that move and, for each target, the table and
the files staged there. The intent is durable before anything is appended, so whichever process opens the record next
finishes it. The targets' own logs decide: a target appends the staged files together with the transaction
(`transfer/<nonce>/<slot>`, 2 × number), or it refuses them with the transaction 2 × number + 1 and no files. Each is one
commit of that log, and the first of the two counts.

    the first target    the other targets          next step
    ----------------    -----------------          ---------
    undecided           (nothing is appended yet)  append to it
    incomplete          (nothing is appended yet)  abort it: undecided, and a staged file is missing
    aborted, replaced   (nothing is appended yet)  return the messages to the origin, flagged as redelivered
    overtaken           (decided long ago)         the same: the origin's store is older than the target's table
    appended            one undecided              append to it
    appended            one incomplete, aborted    blocked: an administrator decides; `jmsq stat` names it
                        or replaced
    appended            all appended               the origin acknowledges the messages

So the absence of a transaction decides nothing, because a sleeping process may still append; and once the first target has
appended, there is no way back. `STEPS` is this table, and `next_step` executes it.

A slot has one open intent at a time, and its numbers rise, so a target keeps one transaction for each slot. A record set
that was lost or restored from an older copy would count from an older number again and read transactions of other
messages as its own; `nonce` tells its lives apart: a record set that meets a number it has not given takes a new one.

`forwards` decides which messages the members of a distributed queue forward to each other.

Features: C5, C18, D5, T8 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

from spark_jms.core.messages.carried import NOTHING_CARRIED, CarriedCounts, with_note
from spark_jms.core.messages.message_bytes import parts_in
from spark_jms.core.messages.ranges import EMPTY, Ranges

MAX_SLOTS = 8  # open intents of one record set
_FILE = re.compile(r"m\d+-t([0-9a-f]{16})-(\d+)-(\d+)-")
COMPRESSED_BODIES = "jmsqCompressedBodies"  # among the statistics of a file; Delta readers ignore it


@dataclass(frozen=True)
class Ticket:
    """One number of one slot, in one life of a record set. It names the transfer in every target's log."""

    nonce: str
    slot: int
    number: int

    @property
    def app_id(self) -> str:
        return f"transfer/{self.nonce}/{self.slot}"

    @property
    def appended(self) -> int:
        return 2 * self.number

    @property
    def aborted(self) -> int:
        return 2 * self.number + 1

    @property
    def file_prefix(self) -> str:
        """Begins the token of every file staged for this transfer, so that clean-up can tell whether it is decided."""
        return f"t{self.nonce}-{self.slot}-{self.number}-"

    def __str__(self) -> str:
        return f"{self.app_id}/{self.number}"


def ticket_of_file(path: str) -> Ticket | None:
    """The transfer for which a file was staged; None for any other file."""
    found = _FILE.match(path.rsplit("/", 1)[-1])
    return Ticket(found[1], int(found[2]), int(found[3])) if found else None


def is_undecided(path: str, transactions: Mapping[str, int]) -> bool:
    """The file may be the only copy of messages that a transfer will still append: clean-up must spare it."""
    ticket = ticket_of_file(path)
    return ticket is not None and transactions.get(ticket.app_id, -1) < ticket.appended


@dataclass(frozen=True)
class StagedFile:
    """A data file that is written and not in a log yet. It has rows but no sequence numbers. `stats` are Delta's statistics, as JSON
    text. `placed`: the units of order that are on this member if they are new (`UnitPaths`)."""

    path: str
    member: int
    rows: int
    bytes: int
    modified_ms: int
    stats: str
    placed: frozenset[str] = frozenset()

    @property
    def token(self) -> str:
        """The unique part of the file's name, with which the ids of its messages begin."""
        return self.path.removeprefix(f"m{self.member}-").removesuffix(".parquet")

    @property
    def message_bytes(self) -> int:
        """Of its messages, as quotas count."""
        return sum(parts_in(json.loads(self.stats), self.bytes))

    @property
    def has_compressed(self) -> bool:
        """Bodies of some messages are compressed."""
        return f'"{COMPRESSED_BODIES}":true' in self.stats

    def add_action(self, first_sequence: int, *, data_change: bool) -> dict[str, dict[str, object]]:
        return {
            "add": {
                "path": self.path,
                "size": self.bytes,
                "modificationTime": self.modified_ms,
                "dataChange": data_change,
                "partitionValues": {"member": str(self.member), "first_sequence": str(first_sequence)},
                "stats": self.stats,
            }
        }


@dataclass(frozen=True)
class TransferTarget:
    """A destination, by its name at the time and its table's id, and the files staged in its directory. `member`: to which all
    messages go, units of order too; None: the destination's route decides, at the commit that appends them."""

    destination: str
    table_id: str
    files: tuple[StagedFile, ...]
    member: int | None = None


@dataclass(frozen=True)
class Intent:
    """`picks` are the messages of this record set that move; `consumer` and `claim` stand in their acknowledgement."""

    ticket: Ticket
    picks: Ranges
    targets: tuple[TransferTarget, ...]
    consumer: str
    claim: str
    reason: str
    made_ms: int

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError("a transfer has at least one target")


class TargetOutcome(Enum):
    """What a target says of a transfer: its log, and while that is undecided, its directory."""

    UNDECIDED = auto()  # no transaction: the files may still be appended, by any process
    INCOMPLETE = auto()  # undecided, and a staged file is missing
    APPENDED = auto()
    ABORTED = auto()
    OVERTAKEN = auto()  # the transaction of a later intent of the slot: this one was decided before
    REPLACED = auto()  # the destination was dropped, or its name belongs to another table now


class TransferStep(Enum):
    APPEND = auto()
    ABORT = auto()
    ACKNOWLEDGE = auto()
    RETURN = auto()
    BLOCKED = auto()


@dataclass(frozen=True)
class NextStep:
    """`target` is the index of the target that the step concerns; -1 for a step at the origin."""

    step: TransferStep
    target: int = -1


_O, _S = TargetOutcome, TransferStep
# (the first target?, its outcome) -> the step; None: look at the next target
STEPS: Mapping[tuple[bool, TargetOutcome], TransferStep | None] = {
    (True, _O.UNDECIDED): _S.APPEND,
    (True, _O.INCOMPLETE): _S.ABORT,
    (True, _O.APPENDED): None,
    (True, _O.ABORTED): _S.RETURN,
    (True, _O.OVERTAKEN): _S.RETURN,
    (True, _O.REPLACED): _S.RETURN,
    (False, _O.UNDECIDED): _S.APPEND,
    (False, _O.INCOMPLETE): _S.BLOCKED,
    (False, _O.APPENDED): None,
    (False, _O.ABORTED): _S.BLOCKED,
    (False, _O.OVERTAKEN): None,
    (False, _O.REPLACED): _S.BLOCKED,
}


def outcome_of(ticket: Ticket, version: int | None) -> TargetOutcome:
    """`version` is the target's transaction of the ticket's slot; None or an older one: undecided."""
    if version is None or version < ticket.appended:
        return TargetOutcome.UNDECIDED
    if version == ticket.appended:
        return TargetOutcome.APPENDED
    return TargetOutcome.ABORTED if version == ticket.aborted else TargetOutcome.OVERTAKEN


def next_step(targets: Sequence[TargetOutcome]) -> NextStep:
    """The next step of an intent whose targets have these outcomes."""
    for index, outcome in enumerate(targets):
        step = STEPS[index == 0, outcome]
        if step is not None:
            at_origin = step in (TransferStep.RETURN, TransferStep.ACKNOWLEDGE)
            return NextStep(step) if at_origin else NextStep(step, index)
    return NextStep(TransferStep.ACKNOWLEDGE)


def free_ticket(nonce: str, used: Mapping[int, int], open_slots: Iterable[int]) -> Ticket | None:
    """The next number of a slot without an open intent; None when all are in use."""
    taken = set(open_slots)
    slot = next((s for s in range(MAX_SLOTS) if s not in taken), None)
    return None if slot is None else Ticket(nonce, slot, used.get(slot, 0) + 1)


# -- stored form -------------------------------------------------------------------------------------------------------
def intent_to_json(intent: Intent) -> dict[str, Any]:
    return {
        "nonce": intent.ticket.nonce,
        "slot": intent.ticket.slot,
        "number": intent.ticket.number,
        "picks": intent.picks.to_json(),
        "consumer": intent.consumer,
        "claim": intent.claim,
        "reason": intent.reason,
        "madeMs": intent.made_ms,
        "targets": [_target_to_json(target) for target in intent.targets],
    }


def _target_to_json(target: TransferTarget) -> dict[str, Any]:
    value: dict[str, Any] = {
        "destination": target.destination,
        "table": target.table_id,
        "files": [[f.path, f.member, f.rows, f.bytes, f.modified_ms, f.stats] for f in target.files],
    }
    return value if target.member is None else {**value, "member": target.member}


def intent_from_json(value: Mapping[str, Any]) -> Intent:
    """Raises ValueError, KeyError or TypeError."""
    return Intent(
        Ticket(str(value["nonce"]), int(value["slot"]), int(value["number"])),
        Ranges.from_json(value["picks"]) if value["picks"] else EMPTY,
        tuple(
            TransferTarget(
                str(target["destination"]),
                str(target["table"]),
                tuple(StagedFile(*file) for file in target["files"]),
                None if target.get("member") is None else int(target["member"]),
            )
            for target in value["targets"]
        ),
        str(value["consumer"]),
        str(value["claim"]),
        str(value["reason"]),
        int(value["madeMs"]),
    )


# -- forwarding between the members of a distributed queue -------------------------------------------------------------
@dataclass(frozen=True)
class LookedAt:
    """A member that answered. `messages` are available, belong to no consumer and do not stay."""

    member: int
    messages: int
    consumers: int


@dataclass(frozen=True)
class Forward:
    """So many of the first messages of `source` go to `target`."""

    source: int
    target: int
    messages: int


@dataclass(frozen=True)
class IdleMembers:
    """Since when members have had messages and no consumers, by the observer's own monotonic clock, in seconds."""

    since_s: Mapping[int, float]

    def after(self, looks: Collection[LookedAt], now_s: float) -> IdleMembers:
        idle = [look.member for look in looks if look.messages and not look.consumers]
        return IdleMembers({member: self.since_s.get(member, now_s) for member in idle})

    def due(self, delay_s: float, now_s: float) -> list[int]:
        return sorted(member for member, since in self.since_s.items() if now_s - since >= delay_s)


def forwards(
    looks: Collection[LookedAt],
    due: Collection[int],
    *,
    not_consuming: Collection[int] = (),
    not_inserting: Collection[int] = (),
    turn: int = 0,
) -> list[Forward]:
    """Which member's messages go where. `not_consuming` and `not_inserting`: members that are paused. The first target of each source
    changes with `turn`.

        a member ...                                                 is
        ------------                                                 --
        has messages, is not paused for consumption, and has had     a source
        no consumers at every look for `forwardDelay`
        has consumers, and is paused for nothing                     a target

    Messages whose redelivery is delayed, or that were delivered too often, stay: the store of their member alone knows that.

    A member whose server did not answer, or is down, is neither, and its wait begins again. Where no member has consumers, nothing
    is forwarded. Each source's messages are shared evenly among the targets.
    """
    targets = sorted(
        look.member for look in looks if look.consumers and look.member not in {*not_consuming, *not_inserting}
    )
    sources = [look for look in looks if look.member in due and look.member not in not_consuming]
    found = []
    for look in sources:
        for place in range(len(targets)):
            share = (look.messages + place) // len(targets)
            if share:
                found.append(Forward(look.member, targets[(place + turn) % len(targets)], share))
    return found


def noted(files: Iterable[StagedFile], carried: CarriedCounts) -> list[StagedFile]:
    """The files with what their messages bring along. `carried`: by the places in all files together."""
    out, first = list[StagedFile](), 1
    for file in files:
        part = carried.within(first, first + file.rows - 1).shifted(1 - first) if file.rows else NOTHING_CARRIED
        first += file.rows
        out.append(replace(file, stats=with_note(file.stats, part)) if part else file)
    return out
