"""Changes of record sets that no session has open: a registered rule decides them inside the store's write.

Theory. Between two processes that plan outside of the write and then compare and set, the slower one starves. So what has to be
decided on the newest state is a pure function, a rule, and runs where the write is: in this process, or in the engine that serves
the store. A process that serves a store runs the rules of all its clients, so each rule has a name in RULES, which every process
of one version knows.

    change = an opening at the next epoch, the operations, and a closing, for each record that the rule changes

These are the entries of any exclusive owner, all in one write. So older readers of a store follow them, the epoch is the version of
a record that no session has open, and every handle of an earlier owner is fenced. A change that decides nothing makes no entry.

Features: C9 (docs/FEATURES.md)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module

from spark_jms.store.contract import (
    ANSWER_LIMIT_BYTES,
    COMMIT_LIMIT_BYTES,
    Delete,
    Operation,
    Put,
    RecordView,
    Rule,
    RuleResult,
)
from spark_jms.store.errors import (
    RecordHeldError,
    RecordOpenError,
    RuleError,
    TransactionInDoubtError,
    ValueInvalidError,
)
from spark_jms.store.ledger.backend import Alive, ChangeAnswer, ChangeRequest, Transaction, evict_dead, tally_of
from spark_jms.store.ledger.ledger import Ledger
from spark_jms.store.ledger.record import Change, Closed, Ended, Opened, Written

RULES: dict[str, Rule | str] = {"record-sets": "spark_jms.claims.records.shared:change_record_sets"}
"""The rules by name: functions, or as `module:function` where one is found, which is imported when it is first asked for. A process
that serves a store knows nothing of what is in it until then."""

_running = threading.local()


def run_change(request: ChangeRequest, transaction: Transaction, alive: Alive) -> ChangeAnswer:
    """Check the request against the newest ledger, run the rule, and do its entries. When it raises, it has done none but the
    end of sessions that are dead."""
    ledger, me = transaction.ledger, request.session_id
    ledger.check_session(me)
    for change in request.held:
        ledger.owned(me, change.name, change.epoch)
    for name in request.names:
        ledger.check_whole(name)
        evict_dead(transaction, alive, ledger.involved(name), me)
    views = {name: view_of(ledger, name) for name in request.names}
    for name, view in views.items():
        if view.holder == me:
            raise RecordOpenError(name)
        if view.holder is not None:
            raise RecordHeldError(name, view.holder)
    result = _run_rule(request, views, frozenset(ledger.sessions))
    shared = [
        Change(name, views[name].version + 1, tuple(operations))
        for name, operations in result.operations.items()
        if operations
    ]
    changes = (*shared, *(change for change in request.held if change.operations))
    if (xid := ledger.prepared.locked_by(changes)) is not None:
        raise TransactionInDoubtError(xid)
    tally = tally_of(changes, ledger)
    for change in shared:
        transaction.do(Opened(change.name, change.epoch, me))
    if changes:
        transaction.do(Written(changes))
    for change in shared:
        transaction.do(Closed(change.name, change.epoch))
    if result.ended:
        transaction.do(Ended(tuple(result.ended)))
    return ChangeAnswer(result.answer, tally)


def view_of(ledger: Ledger, name: str) -> RecordView:
    """RecordCorruptError when the record is damaged."""
    ledger.check_whole(name)
    record = ledger.records.get(name)
    return RecordView(0, {}) if record is None else RecordView(record.epoch, dict(record.objects), record.holder)


def require_no_rule() -> None:
    """RuleError in a thread that runs a rule: a rule that asks its store would wait for itself."""
    if getattr(_running, "name", None):
        raise RuleError(f"the rule {_running.name!r} asked a store")


def _run_rule(request: ChangeRequest, views: dict[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    rule = _rule(request.rule)
    with _inside(request.rule):
        try:
            result = rule(request.argument, views, sessions)
        except RuleError:
            raise
        except Exception as error:
            raise RuleError(f"the rule {request.rule!r} failed with {type(error).__name__}: {error}") from error
    _check(request, result, sessions)
    return result


def _rule(name: str) -> Rule:
    found = RULES.get(name)
    if found is None:
        raise RuleError(f"this process knows no rule {name!r}")
    if isinstance(found, str):
        module, _, function = found.partition(":")
        try:
            found = RULES[name] = getattr(import_module(module), function)
        except Exception as error:
            raise RuleError(f"the rule {name!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


@contextmanager
def _inside(name: str) -> Iterator[None]:
    _running.name = name
    try:
        yield
    finally:
        _running.name = None


def _check(request: ChangeRequest, result: RuleResult, sessions: frozenset[str]) -> None:
    """A rule that decides what it may not fails before anything is done."""
    wrong = ""
    if strange := result.operations.keys() - set(request.names):
        wrong = f"changes {sorted(strange)}, which it was not asked about"
    elif not sessions.issuperset(result.ended) or request.session_id in result.ended:
        wrong = "ends its own session, or one that is not connected"
    elif len(result.answer) > ANSWER_LIMIT_BYTES:
        wrong = f"answers with {len(result.answer)} bytes, more than {ANSWER_LIMIT_BYTES}"
    if wrong:
        raise RuleError(f"the rule {request.rule!r} {wrong}")
    size_bytes = sum(size_of(operations) for operations in result.operations.values())
    if size_bytes > COMMIT_LIMIT_BYTES:
        raise ValueInvalidError(f"the change has {size_bytes} bytes")


def size_of(operations: Sequence[Operation]) -> int:
    """Of keys and values. ValueInvalidError when one is no operation."""
    size = 0
    for operation in operations:
        if isinstance(operation, Put):
            size += len(operation.key) + len(operation.value)
        elif isinstance(operation, Delete):
            size += len(operation.key)
        else:
            raise ValueInvalidError(f"an operation is a Put or a Delete, not {type(operation).__name__}")
    return size
