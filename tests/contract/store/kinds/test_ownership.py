"""Who holds a record set, on every backend: exclusive opening, waiting, hand-over, and the end of a holder that dies or stands still.

C9 (competing consumers: exclusive open, hand-over, fencing), C16 (listing), R8 (immediate re-lock after a crash).
"""

from __future__ import annotations

import pytest

from spark_jms.store import (
    FencedError,
    Put,
    RecordHeldError,
    RecordOpenError,
    SessionLostError,
    StaleEpochError,
    StoreClosedError,
)
from tests.harness.stores.kits import TIMEOUT_MS, Kit, eventually, in_thread

# ---- exclusivity, waiting, hand-over


def test_open_is_exclusive(kit: Kit) -> None:
    """C9, R8: one live session at a time; the error names it."""
    first, second = kit.store.connect("query billing"), kit.other.connect("client")
    handle = first.open("r")
    with pytest.raises(RecordHeldError) as caught:
        second.open("r")
    assert (caught.value.name, caught.value.holder) == ("r", first.session_id)
    assert handle.waiters() == (second.session_id,)
    assert {s.session_id: s.label for s in kit.other.sessions().values()} == {
        first.session_id: "query billing",
        second.session_id: "client",
    }


def test_open_twice_by_one_session(kit: Kit) -> None:
    session = kit.store.connect()
    handle = session.open("r")
    with pytest.raises(RecordOpenError):
        session.open("r")
    handle.close()
    assert session.open("r").epoch == 2


def test_epochs_are_dense_over_owners(kit: Kit) -> None:
    """C9: every owner has its own epoch; a failed open takes none."""
    sessions = [kit.store.connect(), kit.other.connect()]
    for expected in range(1, 7):
        handle = sessions[expected % 2].open("r")
        assert handle.epoch == expected
        with pytest.raises(RecordHeldError):
            sessions[1 - expected % 2].open("r")
        sessions[1 - expected % 2].cancel("r")
        handle.close()


def test_open_waits_until_the_owner_closes(kit: Kit) -> None:
    """C9: hand-over. The waiter gets the record and its content when the owner closes it."""
    first, second = kit.store.connect(), kit.other.connect()
    handle = first.open("r")
    handle.commit([Put("k", b"v")])
    thread, results = in_thread(lambda: second.open("r", timeout_ms=20_000).objects())
    eventually(lambda: handle.waiters() == (second.session_id,))
    handle.close()
    thread.join(20)
    assert results == [{"k": b"v"}]


def test_waiters_are_served_in_order_and_keep_their_place(kit: Kit) -> None:
    """C9: first come, first served; a session that asks again after a timeout keeps its place."""
    owner, second, third = kit.store.connect(), kit.other.connect(), kit.store.connect()
    handle = owner.open("r")
    for waiter in (second, third, second):
        with pytest.raises(RecordHeldError):
            waiter.open("r", timeout_ms=5)
    assert handle.waiters() == (second.session_id, third.session_id)
    handle.close()
    # The close hands the record over before the waiter asks again, so no other session can get in between.
    info = kit.store.info("r")
    assert info is not None
    assert (info.holder, info.waiters, info.epoch) == (second.session_id, (third.session_id,), 2)
    with pytest.raises(RecordHeldError):
        owner.open("r")
    granted = second.open("r")
    assert granted.epoch == 2
    granted.close()
    assert third.open("r").epoch == 3


def test_cancel_withdraws(kit: Kit) -> None:
    owner, second, third = kit.store.connect(), kit.other.connect(), kit.store.connect()
    handle = owner.open("r")
    for waiter in (second, third):
        with pytest.raises(RecordHeldError):
            waiter.open("r")
    second.cancel("r")
    second.cancel("r")
    second.cancel("never heard of")
    assert handle.waiters() == (third.session_id,)
    handle.close()
    assert third.open("r").epoch == 2


def test_cancel_hands_on_a_record_that_was_not_collected(kit: Kit) -> None:
    owner, second, third = kit.store.connect(), kit.other.connect(), kit.store.connect()
    handle = owner.open("r")
    for waiter in (second, third):
        with pytest.raises(RecordHeldError):
            waiter.open("r")
    handle.close()
    second.cancel("r")
    assert third.open("r").epoch == 3


def test_cancel_does_not_close_what_is_open(kit: Kit) -> None:
    session = kit.store.connect()
    handle = session.open("r")
    session.cancel("r")
    handle.commit([Put("k", b"v")])
    assert handle.objects() == {"k": b"v"}


def test_cancel_ends_a_wait_in_another_thread(kit: Kit) -> None:
    owner, second = kit.store.connect(), kit.other.connect()
    handle = owner.open("r")
    thread, results = in_thread(lambda: second.open("r", timeout_ms=60_000))
    eventually(lambda: handle.waiters() == (second.session_id,))
    second.cancel("r")
    thread.join(20)
    assert isinstance(results[0], RecordHeldError)


def test_closing_a_session_hands_over_all_it_has(kit: Kit) -> None:
    """R8: closing hands over every open record and stops every wait."""
    first, second = kit.store.connect(), kit.other.connect()
    one, _two = first.open("one"), first.open("two")
    theirs = second.open("three")
    with pytest.raises(RecordHeldError):
        first.open("three")
    with pytest.raises(RecordHeldError):
        second.open("one")
    first.close()
    first.close()
    assert second.open("one").epoch == 2
    assert theirs.waiters() == ()
    info = kit.store.info("two")
    assert info is not None
    assert info.holder is None
    with pytest.raises(StoreClosedError):
        one.read("k")
    assert set(kit.store.sessions()) == {second.session_id}


def test_infos_tell_holders_and_waiters(kit: Kit) -> None:
    """C16: one call for many."""
    first, second = kit.store.connect(), kit.other.connect()
    first.open("a/1")
    first.open("a/2").close()
    first.open("b/1")
    with pytest.raises(RecordHeldError):
        second.open("a/1")
    infos = kit.other.infos("a/")
    assert set(infos) == {"a/1", "a/2"}
    assert infos["a/1"].holder == first.session_id
    assert infos["a/1"].waiters == (second.session_id,)
    assert infos["a/2"].holder is None
    assert infos["a/2"].epoch == 1
    assert kit.other.info("nothing") is None
    assert len(kit.other.infos()) == 3


# ---- death


def test_records_of_a_crashed_session_are_free_at_once(kit: Kit) -> None:
    """R8, C9: no timeout has to pass after a crash, and the crashed session is fenced."""
    dead, second = kit.store.connect(), kit.other.connect()
    handle = dead.open("r")
    handle.commit([Put("k", b"v")])
    kit.crash(dead)
    info = kit.other.info("r")
    assert info is not None
    assert info.holder is None
    taken = second.open("r")
    assert (taken.epoch, taken.objects()) == (2, {"k": b"v"})
    for call in (lambda: handle.commit([Put("k", b"late")]), lambda: handle.read("k"), lambda: handle.waiters()):
        with pytest.raises(StaleEpochError):
            call()
    with pytest.raises(SessionLostError):
        dead.open("other")
    handle.close()
    dead.close()
    assert taken.objects() == {"k": b"v"}
    assert set(kit.store.sessions()) == {second.session_id}


def test_a_waiting_open_gets_the_record_of_a_crashed_session(kit: Kit) -> None:
    dead, second = kit.store.connect(), kit.other.connect()
    handle = dead.open("r")
    thread, results = in_thread(lambda: second.open("r", timeout_ms=20_000).epoch)
    eventually(lambda: handle.waiters() == (second.session_id,))
    kit.crash(dead)
    thread.join(20)
    assert results == [2]


def test_dead_waiters_leave_the_line(kit: Kit) -> None:
    owner, dead, third = kit.store.connect(), kit.other.connect(), kit.store.connect()
    handle = owner.open("r")
    for waiter in (dead, third):
        with pytest.raises(RecordHeldError):
            waiter.open("r")
    kit.crash(dead)
    assert handle.waiters() == (third.session_id,)
    handle.close()
    assert third.open("r").epoch == 2


def test_a_record_handed_to_a_dead_session_goes_to_the_next_waiter(kit: Kit) -> None:
    owner, dead, third = kit.store.connect(), kit.other.connect(), kit.store.connect()
    handle = owner.open("r")
    for waiter in (dead, third):
        with pytest.raises(RecordHeldError):
            waiter.open("r")
    handle.close()
    kit.crash(dead)
    assert third.open("r", timeout_ms=5_000).epoch == 3


def test_a_stopped_session_is_overtaken_after_its_timeout_only(kit: Kit) -> None:
    """C9: a session without a heartbeat for session_timeout_ms; when its process continues, it can change nothing."""
    stopped, second = kit.store.connect(), kit.other.connect()
    handle, unwanted = stopped.open("r"), stopped.open("unwanted")
    handle.commit([Put("k", b"v")])
    kit.stop_for(stopped, TIMEOUT_MS - 2_000)
    with pytest.raises(RecordHeldError):
        second.open("r")
    kit.advance(3_000)
    taken = second.open("r")
    assert taken.epoch == 2
    with pytest.raises(StaleEpochError):
        handle.commit([Put("k", b"late")])
    with pytest.raises(SessionLostError):  # no session has taken it, but this one has ended all the same
        unwanted.commit([Put("k", b"late")])
    with pytest.raises(FencedError):
        stopped.commit({handle: [Put("k", b"late")], unwanted: [Put("k", b"late")]})
    assert taken.objects() == {"k": b"v"}
    assert kit.store.peek("unwanted") == {}
