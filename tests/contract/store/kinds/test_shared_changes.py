"""Changes of record sets that nobody has open, on every kind of store: a rule decides them inside the store's write.

C9 (competing consumers).
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from spark_jms.store import (
    Delete,
    FencedError,
    Handle,
    Operation,
    Put,
    RecordHeldError,
    RecordOpenError,
    RecordView,
    RuleCall,
    RuleError,
    RuleResult,
    SessionLostError,
    StaleEpochError,
    Store,
    StoreClosedError,
    TransactionInDoubtError,
    ValueInvalidError,
)
from spark_jms.store.ledger.rules import RULES
from tests.harness.stores.kits import Kit

_seen: list[tuple[dict[str, RecordView], frozenset[str]]] = []
_inside: list[Store] = []


def _add(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """Adds one to the key of each record; the answer has the sums."""
    key = argument.decode()
    sums = {name: int(view.objects.get(key, b"0")) + 1 for name, view in records.items()}
    return RuleResult(
        {name: [Put(key, str(value).encode())] for name, value in sums.items()}, answer=json.dumps(sums).encode()
    )


def _note(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """Changes nothing."""
    _seen.append((dict(records), sessions))
    return RuleResult({}, answer=argument)


def _do(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """Does what its argument says: a record, operations by key (None deletes), sessions to end, bytes of the answer."""
    name, values, ended, size = json.loads(argument)
    operations: list[Operation] = [
        Delete(key) if value is None else Put(key, value.encode()) for key, value in values.items()
    ]
    return RuleResult({name: operations}, ended, b"x" * size)


def _fail(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    raise KeyError("nonsense")


def _ask(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    return RuleResult({}, answer=str(_inside[0].peek("r")).encode())


@pytest.fixture(autouse=True)
def rules() -> Iterator[None]:
    _seen.clear()
    _inside.clear()
    known = dict(RULES)
    RULES.update({"add": _add, "note": _note, "do": _do, "fail": _fail, "ask": _ask})
    yield
    RULES.clear()
    RULES.update(known)


ADD = RuleCall("add", b"n")
NOTE = RuleCall("note", b"")


def do(name: str, values: Mapping[str, str | None], ended: tuple[str, ...] = (), size: int = 0) -> RuleCall:
    return RuleCall("do", json.dumps([name, values, ended, size]).encode())


def test_change_is_made_on_the_newest_state_and_answers(kit: Kit) -> None:
    """C9: two sessions change one record set in turn, and neither has it open."""
    one, two = kit.store.connect(), kit.other.connect()
    for number in range(1, 7, 2):
        assert json.loads(one.change(["r"], ADD)) == {"r": number}
        assert json.loads(two.change(["r"], ADD)) == {"r": number + 1}
    assert kit.other.peek("r") == {"n": b"6"}
    assert kit.store.info("r").holder is None  # type: ignore[union-attr]


def test_each_change_has_a_version_of_its_own(kit: Kit) -> None:
    session = kit.store.connect()
    assert session.look(["r"]) == {"r": RecordView(0, {})}
    session.change(["r"], ADD)
    first = session.look(["r", "s"])
    assert first == {"r": RecordView(1, {"n": b"1"}), "s": RecordView(0, {})}
    kit.other.connect().change(["r", "s"], ADD)
    assert session.look(["r", "s"]) == {"r": RecordView(2, {"n": b"2"}), "s": RecordView(1, {"n": b"1"})}


def test_a_change_that_decides_nothing_writes_nothing(kit: Kit) -> None:
    session = kit.store.connect()
    session.change(["r"], ADD)
    before = kit.store.statistics().physical_write_count
    assert session.change(["r", "s"], RuleCall("note", b"hello")) == b"hello"
    assert session.change([], NOTE) == b""
    assert kit.store.statistics().physical_write_count == before
    assert session.look(["r"])["r"].version == 1
    assert kit.store.names() == ["r"]


def test_a_change_of_several_records_is_one_write(kit: Kit) -> None:
    session = kit.store.connect()
    before = kit.store.statistics().physical_write_count
    session.change(["a", "b", "c"], ADD)
    # At an engine in another process, this process counts no write.
    assert kit.store.statistics().physical_write_count in (before, before + 1)
    assert [kit.other.peek(name) for name in "abc"] == [{"n": b"1"}] * 3


def test_the_rule_sees_the_records_and_the_sessions_of_that_moment(kit: Kit) -> None:
    one, two = kit.store.connect("one"), kit.other.connect("two")
    held = two.open("held")
    held.commit([Put("k", b"v")])
    one.change(["r"], ADD)
    held.close()
    one.change(["r", "held"], NOTE)
    (records, sessions) = _seen[-1]
    assert records == {"r": RecordView(1, {"n": b"1"}), "held": RecordView(1, {"k": b"v"})}
    assert {one.session_id, two.session_id} <= sessions
    two.close()
    one.change(["r"], NOTE)
    assert two.session_id not in _seen[-1][1]


def test_a_record_that_another_session_has_open_is_not_changed(kit: Kit) -> None:
    holder, session = kit.other.connect("the holder"), kit.store.connect()
    handle = holder.open("r")
    handle.commit([Put("n", b"5")])
    with pytest.raises(RecordHeldError, match=f"'r' is held by session '{holder.session_id}'"):
        session.change(["s", "r"], ADD)
    assert session.look(["r", "s"]) == {"r": RecordView(1, {"n": b"5"}, holder.session_id), "s": RecordView(0, {})}
    assert handle.waiters() == ()  # who changes does not wait in line
    handle.close()
    assert json.loads(session.change(["r"], ADD)) == {"r": 6}


def test_a_record_that_this_session_has_open_is_not_changed(kit: Kit) -> None:
    session = kit.store.connect()
    with session.open("r") as handle:
        with pytest.raises(RecordOpenError, match="r"):
            session.change(["r"], ADD)
        assert handle.objects() == {}


def test_an_exclusive_opening_gets_a_shared_record_at_once_and_shuts_changes_out(kit: Kit) -> None:
    one, two = kit.store.connect(), kit.other.connect()
    one.change(["r"], ADD)
    handle = two.open("r")
    assert handle.epoch == 2
    with pytest.raises(RecordHeldError):
        one.change(["r"], ADD)
    handle.commit([Put("n", b"10")])
    handle.close()
    assert json.loads(one.change(["r"], ADD)) == {"r": 11}
    assert one.look(["r"])["r"].version == 3


def test_a_change_fences_the_handles_of_earlier_owners(kit: Kit) -> None:
    """C9: a handle of a session that counted as dead is fenced by the version that the change made."""
    sleeper, session = kit.other.connect(), kit.store.connect()
    handle = sleeper.open("r")
    handle.commit([Put("n", b"1")])
    kit.stop_for(sleeper, 11_000)
    assert json.loads(session.change(["r"], ADD)) == {"r": 2}
    with pytest.raises(FencedError):
        handle.commit([Put("n", b"7")])
    assert kit.store.peek("r") == {"n": b"2"}
    with pytest.raises(SessionLostError):
        sleeper.change(["r"], ADD)
    with pytest.raises(SessionLostError):
        sleeper.look(["r"])


def test_the_record_of_a_killed_session_is_changed_at_once(kit: Kit) -> None:
    killed, session = kit.other.connect(), kit.store.connect()
    killed.open("r").commit([Put("n", b"1")])
    kit.crash(killed)
    assert json.loads(session.change(["r"], ADD)) == {"r": 2}
    assert killed.session_id not in kit.store.sessions()


def test_held_records_change_in_the_same_write_or_nothing_does(kit: Kit) -> None:
    session = kit.store.connect()
    progress = session.open("progress")
    session.change(["r"], ADD, {progress: [Put("batch", b"1")]})
    assert (kit.other.peek("r"), progress.objects()) == ({"n": b"1"}, {"batch": b"1"})
    progress.epoch += 1  # as a handle that was overtaken
    with pytest.raises(StaleEpochError):
        session.change(["r"], ADD, {progress: [Put("batch", b"2")]})
    progress.epoch -= 1
    assert (kit.other.peek("r"), progress.objects()) == ({"n": b"1"}, {"batch": b"1"})
    session.change([], NOTE, {progress: [Put("batch", b"3")]})
    assert progress.read("batch") == b"3"


def test_handles_of_another_session_are_refused(kit: Kit) -> None:
    session, other = kit.store.connect(), kit.other.connect()
    handle = other.open("progress")
    with pytest.raises(StoreClosedError, match="belongs to another session"):
        session.change(["r"], ADD, {handle: [Put("batch", b"1")]})
    assert kit.store.peek("r") == {}


def test_sessions_that_the_rule_ends_are_fenced(kit: Kit) -> None:
    """C9: who revokes the claim of a dead session ends that session in the same write."""
    session, dead = kit.store.connect(), kit.other.connect()
    handle = dead.open("other")
    session.change(["r"], do("r", {"k": "v"}, (dead.session_id,)))
    assert kit.store.peek("r") == {"k": b"v"}
    with pytest.raises(FencedError):
        handle.commit([Put("k", b"late")])
    with pytest.raises(SessionLostError):
        dead.change(["r"], ADD)
    assert kit.store.info("other").holder is None  # type: ignore[union-attr]


def test_an_unknown_rule_changes_nothing(kit: Kit) -> None:
    with pytest.raises(RuleError, match="no rule 'nobody'"):
        kit.store.connect().change(["r"], RuleCall("nobody", b""))
    assert kit.store.names() == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (RuleCall("fail", b""), "the rule 'fail' failed with KeyError: 'nonsense'"),
        (do("another", {"k": "v"}), r"changes \['another'\]"),
        (do("r", {"k": "v"}, ("nobody",)), "not connected"),
        (do("r", {"k": "v"}, size=5000), "answers with 5000 bytes"),
        (do("r", {"": "v"}), "not a key"),
        (RuleCall("ask", b""), "the rule 'ask' asked a store"),
    ],
)
def test_a_rule_that_fails_or_decides_what_it_may_not_changes_nothing(kit: Kit, call: RuleCall, text: str) -> None:
    """C9: a rule that asks its own store would wait for itself."""
    _inside.append(kit.store)
    session = kit.store.connect()
    with pytest.raises(RuleError, match=text):
        session.change(["r"], call)
    assert kit.store.names() == []
    assert json.loads(session.change(["r"], ADD)) == {"r": 1}


def test_a_rule_does_not_end_its_own_session(kit: Kit) -> None:
    session = kit.store.connect()
    with pytest.raises(RuleError, match="its own session"):
        session.change(["r"], do("r", {"k": "v"}, (session.session_id,)))
    assert kit.store.names() == []


def test_a_locked_key_is_not_changed(kit: Kit) -> None:
    session = kit.store.connect()
    with session.open("r") as handle:
        session.prepare("x", {handle: [Put("n", b"5")]})
    with pytest.raises(TransactionInDoubtError, match="x"):
        session.change(["r"], ADD)
    session.change(["r"], do("r", {"free": "1"}))
    kit.store.resolve("x", commit=True)
    assert json.loads(session.change(["r"], ADD)) == {"r": 6}
    assert kit.other.peek("r") == {"n": b"6", "free": b"1"}


@pytest.mark.parametrize("argument", ["text", None, 5])
def test_an_argument_of_another_type_is_refused_by_name(kit: Kit, argument: object) -> None:
    with pytest.raises(ValueInvalidError, match="the argument of a rule is bytes"):
        kit.store.connect().change(["r"], RuleCall("add", argument))  # type: ignore[arg-type]


def test_closed_sessions_look_and_change_no_more(kit: Kit) -> None:
    session = kit.store.connect()
    session.close()
    for attempt in (lambda: session.look(["r"]), lambda: session.change(["r"], ADD)):
        with pytest.raises(StoreClosedError):
            attempt()


def test_what_look_returns_is_a_copy(kit: Kit) -> None:
    session = kit.store.connect()
    session.change(["r"], ADD)
    session.look(["r"])["r"].objects.clear()  # type: ignore[attr-defined]
    assert session.look(["r"])["r"].objects == {"n": b"1"}


def test_changes_count_as_commits(kit: Kit) -> None:
    session = kit.store.connect()
    session.change(["r"], ADD)
    session.change(["r"], ADD)
    session.change(["r"], do("r", {"n": None}))
    counted = session.statistics()
    assert (counted.commit_count, counted.create_count, counted.update_count, counted.delete_count) == (3, 1, 1, 1)


def test_threads_of_both_openings_lose_no_change(kit: Kit) -> None:
    """C9: eight sessions add to one record set at once: every addition counts once, and each session gets its turns."""
    sessions = [(kit.store if number % 2 else kit.other).connect() for number in range(8)]
    answers: list[list[int]] = [[] for _ in sessions]
    begin = threading.Barrier(len(sessions))

    def run(number: int) -> None:
        begin.wait()
        for _ in range(25):
            answers[number].append(json.loads(sessions[number].change(["r"], ADD))["r"])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(sessions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(value for own in answers for value in own) == list(range(1, 201))
    assert all(own == sorted(own) for own in answers)
    assert kit.store.peek("r") == {"n": b"200"}


def test_a_session_is_not_starved_by_one_that_never_rests(kit: Kit) -> None:
    """C9: the other opening changes the record without a pause; this one gets through every time it asks."""
    eager, session = kit.store.connect(), kit.other.connect()
    stop, made = threading.Event(), [0]

    def run() -> None:
        while not stop.is_set():
            eager.change(["r"], ADD)
            made[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while made[0] < 5:
            time.sleep(0.001)
        for _ in range(20):
            session.change(["s", "r"], ADD)
    finally:
        stop.set()
        thread.join()
    assert kit.store.peek("s") == {"n": b"20"}
    assert kit.store.peek("r") == {"n": str(20 + made[0]).encode()}


def _handles(handle: Handle) -> dict[Handle, list[Operation]]:
    return {handle: [Put("k", b"v")]}


def test_an_empty_change_follows_every_earlier_write_of_the_session(kit: Kit) -> None:
    """C9: behind it, `look` shows what became of a change whose outcome is unknown."""
    session = kit.store.connect()
    with session.open("p") as progress:
        session.commit(_handles(progress))
        session.change(["r"], ADD, _handles(progress))
        session.change(["r"], NOTE)
        assert session.look(["r", "p"])["r"] == RecordView(1, {"n": b"1"})
