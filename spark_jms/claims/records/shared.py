"""Record sets that any live consumer may change: what one has planned is done inside the store's write, on the newest state.

A consumer commits the journal of its plan (core/records/journal.py), which the rule `record-sets` replays, in this process or in the
engine that serves the store:

    the rule answers   the consumer
    ----------------   ------------
    nothing            looks what it has got: its claim has the messages that were still to be had
    again              PlanOutdatedError: messages that the plan was about are not as they were, so it plans again
    refused            raises the error: its claim is not its own any more, or the record set cannot be read

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

from spark_jms import errors
from spark_jms.claims.servers.stores import operations
from spark_jms.core.records.journal import PlannedChange, StateChangedError, replayed
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import NEW_RECORD, Followed, followed
from spark_jms.errors import JmsqError, MemberUnavailableError
from spark_jms.store import Operation, RecordView, RuleResult

RULE = "record-sets"
_MOST_FOLLOWED = 1_000
_AGAIN, _REFUSED = "again", "refused"
_followed: dict[str, Followed] = {}  # of this process, by record


class PlanOutdatedError(MemberUnavailableError):
    """Others have changed messages that a plan was about: nothing was written, and a new plan may do it."""


def change_record_sets(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """The rule. A session that the plan found dead ends in the same write, so that it cannot act any more."""
    change = PlannedChange.from_bytes(argument)
    found: dict[str, list[Operation]] = {}
    try:
        for name in change.journals:
            found[name] = decided(change, name, records[name].objects, sessions)
    except PlanOutdatedError as error:
        return RuleResult({}, answer=json.dumps([_AGAIN, name, str(error)]).encode())
    except JmsqError as error:
        return RuleResult({}, answer=json.dumps([_REFUSED, type(error).__name__, str(error)]).encode())
    return RuleResult(found, sessions.intersection(change.dead))


def decided(change: PlannedChange, name: str, objects: Mapping[str, bytes], sessions: Set[str]) -> list[Operation]:
    """What the change does to one record set, which has these objects now. Raises PlanOutdatedError, and ConsumerClosedException."""
    before = follow(name, objects)
    dead = sessions & set(change.dead)
    try:
        return operations(before, replayed(before, change.journals[name], sessions, dead, change.clears.get(name)))
    except StateChangedError as error:
        raise PlanOutdatedError(
            f"others have changed {name} meanwhile ({error}): nothing was changed; try again"
        ) from error


def follow(record: str, objects: Mapping[str, bytes], label: str = "") -> RecordSet:
    """Raises RecordSetError or FormatVersionError."""
    known = _followed.get(record, NEW_RECORD)
    found = followed(known, objects, label or record)
    if found is not known:
        if len(_followed) >= _MOST_FOLLOWED:
            _followed.clear()
        _followed[record] = found
    return found.state


def raise_refusal(answer: bytes) -> None:
    """What an answer of the rule says, if anything."""
    if not answer:
        return
    kind, what, text = json.loads(answer)
    if kind == _AGAIN:
        raise PlanOutdatedError(text)
    raise getattr(errors, what)(text)
