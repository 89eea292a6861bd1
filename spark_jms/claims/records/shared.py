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
from collections.abc import Callable, Mapping, Set
from typing import NamedTuple

from spark_jms import errors
from spark_jms.claims.servers.stores import operations
from spark_jms.core.records.journal import PlannedChange, StateChangedError, replayed
from spark_jms.core.records.record_set import RecordSet
from spark_jms.core.records.stored_form import NEW_RECORD, Followed, followed, followed_change
from spark_jms.errors import JmsqError, MemberUnavailableError
from spark_jms.store import Operation, Put, RecordView, RuleResult

Made = dict[str, tuple[RecordSet, int]]
"""Record sets as a write has left them, with the versions of their records."""
RULE = "record-sets"
_MOST_FOLLOWED = 1_000
_AGAIN, _REFUSED = "again", "refused"
_followed: dict[str, Followed] = {}  # of this process, by record
# Of this process, at the moment, by the identity of what is written: others may ask for the same.
_own: dict[int, _Asked] = {}


class _Asked(NamedTuple):
    change: PlannedChange
    made: Made


class PlanOutdatedError(MemberUnavailableError):
    """Others have changed messages that a plan was about: nothing was written, and a new plan may do it."""


def change_record_sets(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """The rule. A session that the plan found dead ends in the same write, so that it cannot act any more."""
    own = _own.get(id(argument))
    change = own.change if own else PlannedChange.from_bytes(argument)
    found: dict[str, list[Operation]] = {}
    try:
        for name in change.journals:
            found[name], after = decided(change, name, records[name].objects, sessions)
            if own:
                own.made[name] = after, records[name].version + bool(found[name])
    except PlanOutdatedError as error:
        return RuleResult({}, answer=json.dumps([_AGAIN, name, str(error)]).encode())
    except JmsqError as error:
        return RuleResult({}, answer=json.dumps([_REFUSED, type(error).__name__, str(error)]).encode())
    return RuleResult(found, sessions.intersection(change.dead))


def asked(change: PlannedChange, ask: Callable[[bytes], bytes]) -> tuple[bytes, Made]:
    """What `ask` answers, which calls the rule with what is written of the change. Where that happens in this process, the rule reads
    nothing back, and neither has the consumer to: what was made of the record sets comes with the answer."""
    argument = change.to_bytes()
    own = _own[id(argument)] = _Asked(change, {})
    try:
        return ask(argument), own.made
    finally:
        del _own[id(argument)]


def decided(
    change: PlannedChange, name: str, objects: Mapping[str, bytes], sessions: Set[str]
) -> tuple[list[Operation], RecordSet]:
    """What the change does to one record set, which has these objects now, and what it makes of it. Raises PlanOutdatedError, and
    ConsumerClosedException."""
    known = _following(name, objects, name)
    dead = sessions & set(change.dead)
    try:
        after = replayed(known.state, change.journals[name], sessions, dead, change.clears.get(name))
    except StateChangedError as error:
        raise PlanOutdatedError(
            f"others have changed {name} meanwhile ({error}): nothing was changed; try again"
        ) from error
    made = operations(known.state, after)
    if made:
        changes = {one.key: one.value if isinstance(one, Put) else None for one in made}
        known = followed_change(known, after, changes)
        _keep(name, known)
    return made, known.state


def follow(record: str, objects: Mapping[str, bytes], label: str = "") -> RecordSet:
    """Raises RecordSetError or FormatVersionError."""
    return _following(record, objects, label or record).state


def _following(record: str, objects: Mapping[str, bytes], label: str) -> Followed:
    known = _followed.get(record, NEW_RECORD)
    found = followed(known, objects, label)
    if found is not known:
        _keep(record, found)
    return found


def _keep(record: str, found: Followed) -> None:
    if len(_followed) >= _MOST_FOLLOWED and record not in _followed:
        _followed.clear()
    _followed[record] = found


def raise_refusal(answer: bytes) -> None:
    """What an answer of the rule says, if anything."""
    if not answer:
        return
    kind, what, text = json.loads(answer)
    if kind == _AGAIN:
        raise PlanOutdatedError(text)
    raise getattr(errors, what)(text)
