"""The store contract, on every backend: memory, file, and file with two openings that share nothing but the directory.

C9 (competing consumers), C16 (listing, statistics), S9 (file store). Who holds a record set is in test_ownership.py.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms import store as store_package
from spark_jms.store import (
    Delete,
    NameInvalidError,
    Operation,
    Put,
    StaleEpochError,
    Store,
    StoreClosedError,
    StoreError,
    StoreNotFoundError,
    StoreUriError,
    TransactionInDoubtError,
    TransactionUnknownError,
    ValueInvalidError,
    open_store,
)
from tests.harness.stores.kits import Kit, in_thread

# ---- objects


def test_commit_read_objects_peek(kit: Kit) -> None:
    """C9: the owner reads what it has committed, and others peek at it without opening the record."""
    handle = kit.store.connect().open("orders/billing/0")
    handle.commit([Put("floor", b"1"), Put("claim", b"\x00\xff" * 100)])
    handle.commit([Put("floor", b"2"), Delete("claim"), Delete("never")])
    assert handle.read("floor") == b"2"
    assert handle.read("claim") is None
    assert handle.objects() == kit.other.peek("orders/billing/0") == {"floor": b"2"}
    assert kit.other.peek("unknown") == {}


def test_operations_apply_in_order(kit: Kit) -> None:
    handle = kit.store.connect().open("r")
    handle.commit([Put("a", b"1"), Delete("a"), Put("a", b"2"), Put("b", b""), Put("b", b"3")])
    assert handle.objects() == {"a": b"2", "b": b"3"}


def test_objects_and_peek_are_copies(kit: Kit) -> None:
    handle = kit.store.connect().open("r")
    handle.commit([Put("a", b"1")])
    handle.objects().clear()
    kit.store.peek("r").clear()
    assert handle.objects() == {"a": b"1"}


def test_names_are_sorted_and_filtered(kit: Kit) -> None:
    session = kit.store.connect()
    for name in ("b/2", "a/1", "b/1", "ü/☃ one"):
        session.open(name).close()
    assert kit.other.names() == ["a/1", "b/1", "b/2", "ü/☃ one"]
    assert kit.other.names("b/") == ["b/1", "b/2"]
    assert kit.other.names("c") == []


def test_commit_over_several_handles_is_one_write(kit: Kit) -> None:
    """S9: atomic over all handles, one physical write."""
    session = kit.store.connect()
    first, second = session.open("one"), session.open("two")
    before = kit.store.statistics().physical_write_count
    session.commit({first: [Put("k", b"1")], second: [Put("k", b"2")]})
    assert kit.store.statistics().physical_write_count == before + 1
    assert (kit.other.peek("one"), kit.other.peek("two")) == ({"k": b"1"}, {"k": b"2"})


def test_commit_over_several_handles_is_all_or_nothing(kit: Kit) -> None:
    session = kit.store.connect()
    first, second = session.open("one"), session.open("two")
    first.epoch += 1  # as a handle that was overtaken
    with pytest.raises(StaleEpochError):
        session.commit({second: [Put("k", b"2")], first: [Put("k", b"1")]})
    assert kit.other.peek("two") == kit.other.peek("one") == {}


def test_empty_commit_writes_nothing_but_is_fenced(kit: Kit) -> None:
    handle = kit.store.connect().open("r")
    before = kit.store.statistics().physical_write_count
    handle.commit([])
    assert kit.store.statistics().physical_write_count == before
    handle.epoch += 1
    with pytest.raises(StaleEpochError):
        handle.commit([])


def test_big_value_and_limits(kit: Kit) -> None:
    handle = kit.store.connect().open("x" * 512)
    big = b"v" * (16 * 1024 * 1024)
    handle.commit([Put("big", big)])
    assert kit.other.peek("x" * 512) == {"big": big}
    with pytest.raises(ValueInvalidError):
        Put("bigger", big + b"v")
    with pytest.raises(ValueInvalidError):
        Put("text", "no bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueInvalidError):
        handle.commit(["nonsense"])  # type: ignore[list-item]


def test_operations_of_an_iterator_are_all_kept(kit: Kit) -> None:
    """C9: an iterator can be read once; a commit that read it twice acknowledged and kept nothing."""
    session = kit.store.connect()
    handle = session.open("r")
    handle.commit(iter([Put("a", b"1"), Put("b", b"2")]))  # type: ignore[arg-type]
    session.prepare("x", {handle: iter([Put("c", b"3")])})  # type: ignore[dict-item]
    kit.other.resolve("x", commit=True)
    assert kit.other.peek("r") == {"a": b"1", "b": b"2", "c": b"3"}


@pytest.mark.parametrize("changes", [None, [], "r", {None: []}, {"r": [Put("a", b"")]}])
def test_changes_of_another_type_are_refused_by_name(kit: Kit, changes: object) -> None:
    session = kit.store.connect()
    for attempt in (session.commit, lambda it: session.prepare("x", it)):
        with pytest.raises(ValueInvalidError, match="changes are a dict of handles to operations, not"):
            attempt(changes)  # type: ignore[arg-type]
    assert kit.store.in_doubt() == {}


@pytest.mark.parametrize("operations", [None, 5])
def test_operations_of_another_type_are_refused_by_name(kit: Kit, operations: object) -> None:
    handle = kit.store.connect().open("r")
    with pytest.raises(ValueInvalidError, match="not {LedgerHandle: "):
        handle.commit(operations)  # type: ignore[arg-type]


@pytest.mark.parametrize("decision", [None, "rollback", 1])
def test_decision_of_another_type_resolves_nothing(kit: Kit, decision: object) -> None:
    """C9: a store in memory took any text for a commit."""
    session = kit.store.connect()
    session.prepare("x", {session.open("r"): [Put("a", b"1")]})
    with pytest.raises(ValueInvalidError, match="True .commit. or False"):
        kit.store.resolve("x", decision)  # type: ignore[arg-type]
    assert kit.other.in_doubt() == {"x": ("r",)}
    kit.other.resolve("x", commit=False)


@pytest.mark.parametrize("prefix", [None, 5, b"r"])
def test_prefixes_of_another_type_are_refused_by_name(kit: Kit, prefix: object) -> None:
    for ask in (kit.store.names, kit.store.infos):
        with pytest.raises(NameInvalidError, match="a prefix is a str"):
            ask(prefix)  # type: ignore[operator]


@pytest.mark.parametrize("timeout_ms", [None, "5", float("nan"), True])
def test_timeouts_of_another_type_are_refused_by_name(kit: Kit, timeout_ms: object) -> None:
    with pytest.raises(ValueInvalidError, match="timeout_ms is a number of milliseconds"):
        kit.store.connect().open("r", timeout_ms=timeout_ms)  # type: ignore[arg-type]
    assert kit.store.names() == []


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 513, "\x00", "\ud800", 7, None])
def test_bad_names_are_refused_by_name(kit: Kit, name: object) -> None:
    session = kit.store.connect()
    with pytest.raises(NameInvalidError):
        session.open(name)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        Put(name, b"")  # type: ignore[arg-type]
    with pytest.raises(NameInvalidError):
        Delete(name)  # type: ignore[arg-type]
    if name != "":
        with pytest.raises(NameInvalidError):
            kit.store.connect(name)  # type: ignore[arg-type]
    assert kit.store.names() == []


# ---- closed objects, statistics, many threads


def test_closed_objects_refuse_every_call(kit: Kit) -> None:
    session = kit.store.connect()
    handle = session.open("r")
    handle.close()
    handle.close()
    calls: list[Callable[[], object]] = [handle.objects, handle.waiters, lambda: handle.read("k")]
    calls.append(lambda: handle.commit([Put("k", b"v")]))
    session.close()
    calls += [lambda: session.open("r"), session.statistics, lambda: session.cancel("r")]
    kit.store.close()
    calls += [kit.store.connect, kit.store.names, kit.store.statistics, lambda: kit.store.peek("r"), kit.store.sessions]
    calls += [lambda: kit.store.info("r"), kit.store.infos]
    for call in calls:
        with pytest.raises(StoreClosedError):
            call()


def test_closing_the_store_closes_its_sessions_only(kit: Kit) -> None:
    ours, theirs = kit.store.connect(), kit.other.connect()
    ours.open("r")
    kit.store.close()
    assert set(kit.other.sessions()) == {theirs.session_id}
    assert theirs.open("r").epoch == 2


def test_a_handle_of_another_session_is_refused(kit: Kit) -> None:
    first, second = kit.store.connect(), kit.store.connect()
    handle = first.open("r")
    with pytest.raises(StoreClosedError):
        second.commit({handle: [Put("k", b"v")]})


def test_statistics_count_what_was_done(kit: Kit) -> None:
    """C16."""
    session = kit.store.connect()
    handle = session.open("r")
    handle.commit([Put("a", b"1"), Put("b", b"22")])
    handle.commit([Put("a", b"3"), Delete("b"), Delete("b"), Put("c", b"4")])
    handle.read("a")
    statistics = kit.store.statistics()
    assert (statistics.create_count, statistics.update_count, statistics.delete_count) == (3, 1, 1)
    assert (statistics.read_count, statistics.commit_count, statistics.connection_count) == (1, 2, 1)
    assert (statistics.object_count, statistics.object_bytes, statistics.record_count) == (2, 4, 1)
    assert statistics.physical_write_count >= 3
    assert session.statistics().create_count == 3
    assert session.statistics().open_handle_count == 1
    with contextlib.suppress(StaleEpochError):
        handle.epoch = 9
        handle.commit([Put("d", b"4")])
    assert kit.store.statistics().create_count == 3


def test_concurrent_commits_are_all_kept_and_share_writes(kit: Kit) -> None:
    """S9: never more writes than commits."""
    session = kit.store.connect()
    handles = [session.open(f"r/{number}") for number in range(6)]
    before = kit.store.statistics().physical_write_count

    def work(number: int) -> None:
        for step in range(20):
            handles[number].commit([Put("step", str(step).encode()), Put(f"k{step}", b"v")])

    threads = [in_thread(lambda number=number: work(number)) for number in range(6)]  # type: ignore[misc]
    for thread, _ in threads:
        thread.join(60)
    assert [results for _, results in threads] == [[None]] * 6
    assert kit.store.statistics().physical_write_count - before <= 120
    for number in range(6):
        assert kit.other.peek(f"r/{number}")["step"] == b"19"
        assert len(kit.other.peek(f"r/{number}")) == 21


def test_contending_threads_exclude_each_other(kit: Kit) -> None:
    """C9: two openings read, add one, write and close concurrently: no update is lost."""

    def work(store: Store) -> None:
        with store.connect() as session:
            for _ in range(15):
                with session.open("counter", timeout_ms=60_000) as handle:
                    value = int(handle.read("n") or b"0")
                    handle.commit([Put("n", str(value + 1).encode())])

    threads = [in_thread(lambda store=store: work(store)) for store in (kit.store, kit.other, kit.store)]  # type: ignore[misc]
    for thread, _ in threads:
        thread.join(100)
    assert [results for _, results in threads] == [[None]] * 3
    assert kit.store.peek("counter") == {"n": b"45"}


# ---- transactions in two phases


def test_a_prepared_transaction_is_invisible_until_it_is_committed(kit: Kit) -> None:
    """S2: prepared over two records, resolved by another process after the session has died."""
    session = kit.store.connect()
    one, two = session.open("one"), session.open("two")
    one.commit([Put("k", b"old"), Put("other", b"1")])
    session.prepare("x1", {one: [Put("k", b"new")], two: [Put("k", b"2")]})
    assert kit.other.in_doubt() == {"x1": ("one", "two")}
    assert kit.other.peek("one")["k"] == b"old"
    kit.crash(session)
    taken = kit.other.connect().open("one")
    kit.other.resolve("x1", commit=True)
    assert taken.objects() == {"k": b"new", "other": b"1"}
    assert kit.store.peek("two") == {"k": b"2"}
    assert kit.store.in_doubt() == {}
    with pytest.raises(TransactionUnknownError):
        kit.store.resolve("x1", commit=True)


def test_a_prepared_transaction_locks_its_keys_until_it_is_rolled_back(kit: Kit) -> None:
    """S2: no session may write a promised key meanwhile; other keys are free."""
    session = kit.store.connect()
    handle = session.open("one")
    session.prepare("x1", {handle: [Put("k", b"promised")]})
    for refused in (
        lambda: handle.commit([Put("k", b"mine")]),
        lambda: session.prepare("x2", {handle: [Delete("k")]}),
        lambda: session.prepare("x1", {handle: [Put("z", b"")]}),
    ):
        with pytest.raises(TransactionInDoubtError):
            refused()
    handle.commit([Put("free", b"1")])
    kit.other.resolve("x1", commit=False)
    handle.commit([Put("k", b"mine")])
    assert handle.objects() == {"free": b"1", "k": b"mine"}


def test_a_stale_handle_prepares_nothing(kit: Kit) -> None:
    """S2, C9."""
    session = kit.store.connect()
    handle = session.open("one")
    handle.epoch += 1
    with pytest.raises(StaleEpochError):
        session.prepare("x1", {handle: [Put("k", b"v")]})
    assert kit.store.in_doubt() == {}


# ---- opening by URI


@pytest.mark.parametrize("scheme", ["memory", "file", "path", "sqlite", "jdbc", "postgresql"])
def test_open_store_by_uri(tmp_path: Path, scheme: str, request: pytest.FixtureRequest) -> None:
    """S1, S9: every kind of store."""
    path = tmp_path / "a b" / "store"
    if scheme == "postgresql":
        uri = str(request.getfixturevalue("postgresql").uri())
    else:
        uri = {
            "memory": f"memory://{tmp_path.name}-x",
            "file": path.as_uri(),
            "path": str(path),
            "sqlite": f"sqlite:///{path}",
            "jdbc": f"jdbc:sqlite:///{path}?prefix=MINE",
        }[scheme]
    with pytest.raises(StoreNotFoundError):
        open_store(uri, create=False)
    with open_store(uri) as store, store.connect() as session:
        session.open("r").commit([Put("k", b"v")])
        with open_store(uri, create=False) as again:
            assert again.peek("r") == {"k": b"v"}
            assert set(again.sessions()) == {session.session_id}
        assert store.peek("r") == {"k": b"v"}  # closing the other opening closed nothing of this one
    with open_store(uri, create=False) as store:
        assert store.sessions() == {}
        info = store.info("r")
        assert info is not None
        assert (info.epoch, info.holder) == (1, None)
        assert store.peek("r") == {"k": b"v"}
        with store.connect() as session:
            assert session.open("r").epoch == 2


@pytest.mark.parametrize("uri", ["", "s3://bucket/x", "jdbc:oracle://h/db", "file://host/x", "memory://", None])
def test_an_unknown_uri_error_lists_the_schemes(uri: str) -> None:
    with pytest.raises((StoreUriError, NameInvalidError)) as caught:
        open_store(uri)
    assert "memory://NAME" in str(caught.value)


def test_every_error_has_a_name_advice_and_pickles() -> None:
    """Each has the one base class, a docstring with advice, and survives the pickle of a worker."""
    found = [kind for kind in vars(store_package).values() if isinstance(kind, type) and issubclass(kind, StoreError)]
    arguments: dict[str, tuple[object, ...]] = {
        "RecordHeldError": ("r", "s"),
        "StaleEpochError": ("r", 1, 2),
        "StoreVersionError": ("f", 2, 1),
        "StoreCorruptError": ("f", 17, "why"),
        "RecordCorruptError": ("f", 17, "why", "r"),
        "ForeignOwnerError": ("f", "a", "b"),
    }
    assert len(found) >= 16
    for kind in found:
        error = kind(*arguments.get(kind.__name__, ("what happened",)))
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
        assert kind.__doc__
        assert str(error).endswith(".")


def test_operations_are_values() -> None:
    operations: list[Operation] = [Put("k", b"v"), Delete("k")]
    assert operations == [Put("k", b"v"), Delete("k")]
    assert len({*operations, *operations}) == 2
