"""The Delta log as a queue, on a local directory and on an object store (C3, C5, C13)."""

from __future__ import annotations

import json
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from attrs import evolve

from spark_jms.core.destinations.destination import Destination
from spark_jms.core.messages.columns import PARTITION_SCHEMA, STORED_SCHEMA
from spark_jms.core.messages.ranges import Ranges
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import ForeignWriteError, FormatVersionError, InvalidDestinationError, UnreadableTableError
from spark_jms.log.destinations.declarations import create_subscription, create_table
from spark_jms.log.destinations.domain import create_domain
from spark_jms.log.messages.data_files import read_stored
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import TransactionId, send
from spark_jms.log.tables.checkpoints import LOG, commit_path
from spark_jms.log.tables.commit import Decision, commit, metadata_action
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import FileHint
from spark_jms.log.tables.object_store import ObjectStorage, open_storage
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.log.upkeep.clean_up import checkpoint, clean_up
from spark_jms.log.upkeep.compaction import compact
from spark_jms.log.upkeep.purge import purge
from tests.harness.processes import forked

ORDERS = Destination("orders", "distributed-topic", 2)


def local_table(path: Path, destination: Destination = ORDERS) -> LocalStorage:
    """A table as `apply` makes it, by delta-rs."""
    domain = create_domain(str(path))
    create_table(domain, destination.name, STORED_SCHEMA, destination)
    storage = domain.storage.child(destination.name)
    assert isinstance(storage, LocalStorage)
    return storage


def memory_table(path: Path, destination: Destination = ORDERS) -> ObjectStorage:
    """delta-rs cannot make tables in obstore's memory store, so version 0 of a local table is copied there."""
    model = local_table(path, destination)
    storage = open_storage(f"memory://{uuid.uuid4().hex}").child(destination.name)
    assert isinstance(storage, ObjectStorage)
    first = model.get(commit_path(0))
    assert first is not None
    assert storage.create(commit_path(0), first)
    return storage


@pytest.fixture(params=["local", "object store"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> LocalStorage | ObjectStorage:
    return (local_table if request.param == "local" else memory_table)(tmp_path / "domain")


@pytest.fixture
def table(tmp_path: Path) -> DeltaLog:
    return DeltaLog(local_table(tmp_path / "domain"), "orders")


def staged(
    log: DeltaLog, texts: Sequence[str], destination: Destination | None = None, group: str | None = None
) -> list[StagedFile]:
    writer = MessageWriter(log.storage, destination or log.refresh().destination, turn=0)
    properties = pa.array([{"color": "red"}] * len(texts))
    groups = pa.array([group] * len(texts), pa.string())
    writer.write(pa.RecordBatch.from_pydict({"text": list(texts), "properties": properties, "JMSXGroupID": groups}))
    return writer.close()


def put(log: DeltaLog, *texts: str, transaction: TransactionId | None = None) -> dict[int, Ranges]:
    route = log.refresh().route_id
    return dict(send(log, staged(log, texts), route, transaction).sequences)


def fresh(log: DeltaLog) -> DeltaLog:
    return DeltaLog(log.storage, log.name)


def texts(log: DeltaLog) -> dict[tuple[int, int], str]:
    """(member, sequence) -> text of all messages in the table; fails on a duplicate sequence."""
    out: dict[tuple[int, int], str] = {}
    for member, files in sorted(log.refresh().members.items()):
        for f in files.files:
            for batch, sequences in read_stored(log.storage, f.hint, Ranges.of((f.first, f.last)), ["text"]):
                for sequence, text in zip(sequences.tolist(), batch.column("text").to_pylist(), strict=True):
                    assert (member, sequence) not in out
                    out[member, sequence] = text
    return out


# -- storage --------------------------------------------------------------------------------------------------------------
def test_create_is_exclusive_between_instances_of_one_process(tmp_path: Path) -> None:
    """C5: two Domains of one process, or of containers with the same process number, never share a temporary file."""
    for i in range(300):
        stores = [LocalStorage(tmp_path) for _ in range(2)]
        start, won, errors = threading.Barrier(2), [False, False], []

        def race(
            which: int,
            i: int = i,
            stores: list[LocalStorage] = stores,
            start: threading.Barrier = start,
            won: list[bool] = won,
            errors: list[Exception] = errors,
        ) -> None:
            try:
                start.wait()
                won[which] = stores[which].create(f"c{i}", b"%d" % which * 500)
            except Exception as error:  # noqa: BLE001 - asserted below
                errors.append(error)

        threads = [threading.Thread(target=race, args=(which,)) for which in range(2)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert not errors
        assert sorted(won) == [False, True]
        assert stores[0].get(f"c{i}") == b"%d" % won.index(True) * 500
    assert not [info.path for info in LocalStorage(tmp_path).list("") if info.path.startswith(".")]


# -- numbering ------------------------------------------------------------------------------------------------------------
def test_concurrent_committers_stay_dense(storage: LocalStorage | ObjectStorage) -> None:
    """C5: racing senders, each with its own view of the log, give each sequence once, without gaps."""
    errors: list[BaseException] = []

    def run(name: str) -> None:
        try:
            log = DeltaLog(storage, "orders")
            for i in range(12):
                put(log, f"{name}-{i}-a", f"{name}-{i}-b", f"{name}-{i}-c")
        except BaseException as error:  # noqa: BLE001 - asserted below
            errors.append(error)

    threads = [threading.Thread(target=run, args=(f"s{n}",)) for n in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not errors
    log = DeltaLog(storage, "orders")
    got = texts(log)
    assert sorted(got.values()) == sorted(f"s{n}-{i}-{k}" for n in range(4) for i in range(12) for k in "abc")
    for member in (0, 1):
        last = log.snapshot.last_sequence(member)
        assert sorted(s for m, s in got if m == member) == list(range(1, last + 1))
        for n in range(4):  # order per sender and member
            mine = [
                (int(t.split("-")[1]), t) for (m, _), t in sorted(got.items()) if m == member and t.startswith(f"s{n}-")
            ]
            assert mine == sorted(mine)
    assert log.snapshot.version == 48


_SENDER = """
import sys
import pyarrow as pa
from spark_jms.log.sending.send import send
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter

log = Domain(sys.argv[1]).log("orders")
for i in range(15):
    writer = MessageWriter(log.storage, log.refresh().destination, i)
    writer.write(pa.RecordBatch.from_pydict({"text": [f"{sys.argv[2]}-{i}-{k}" for k in "abc"]}))
    send(log, writer.close(), log.snapshot.route_id)
"""


def test_committers_of_several_processes_stay_dense(tmp_path: Path) -> None:
    """C5: racing sender processes on a local directory give each sequence once, without gaps."""
    log = DeltaLog(local_table(tmp_path / "domain"), "orders")
    create_domain(str(tmp_path / "domain")).storage.create("_jmsq/destinations/orders", b"")
    senders = [forked.Popen([sys.executable, "-c", _SENDER, str(tmp_path / "domain"), f"s{n}"]) for n in range(3)]
    assert [sender.wait() for sender in senders] == [0, 0, 0]
    got = texts(log)
    assert sorted(got.values()) == sorted(f"s{n}-{i}-{k}" for n in range(3) for i in range(15) for k in "abc")
    for member in (0, 1):
        assert sorted(s for m, s in got if m == member) == list(range(1, log.snapshot.last_sequence(member) + 1))


def test_transaction_counts_once(storage: LocalStorage | ObjectStorage) -> None:
    """C5: a repeated (app id, version) writes nothing and deletes its files; those of the first send stay."""
    log, other = DeltaLog(storage, "orders"), DeltaLog(storage, "orders")
    first = staged(log, ["a", "b"])
    route = log.snapshot.route_id
    assert send(log, first, route, TransactionId("q", 7)).version == 1
    again = staged(other, ["a", "b"])
    assert send(other, again, route, TransactionId("q", 7)).version == -1
    assert send(other, staged(other, ["old"]), route, TransactionId("q", 6)).version == -1
    assert send(log, first, route, TransactionId("q", 7)).version == -1  # the same files, which are messages now
    assert sorted(texts(other).values()) == ["a", "b"]
    assert {info.path for info in storage.list("") if info.path.endswith(".parquet")} == {f.path for f in first}


def test_sequences_continue_after_a_full_purge(storage: LocalStorage | ObjectStorage) -> None:
    """C5: numbering does not depend on the remaining files."""
    log = DeltaLog(storage, "orders")
    put(log, "a", "b", "c", "d")
    create_subscription(log, "s", lambda snapshot: {0: 0, 1: 0})
    assert purge(log, lambda *_: True).purged_messages == 4
    assert put(fresh(log), "e", "f") == {0: Ranges.of((3, 3)), 1: Ranges.of((3, 3))}


def test_send_keeps_its_route_when_a_member_is_added(storage: LocalStorage | ObjectStorage) -> None:
    """C4, C5: files staged by an older route keep it, so a producer's order is kept."""
    log = DeltaLog(storage, "orders")
    files = staged(log, [str(i) for i in range(9)])
    route = log.snapshot.route_id
    change(log, members=3)
    assert send(log, files, route).sequences == {f.member: Ranges.of((1, f.rows)) for f in files}
    assert all(storage.exists(f.path) for f in files)


def test_purge_leaves_no_holes_in_a_topic(table: DeltaLog) -> None:
    """C10, C13: a file behind an unfinished one stays, so that a later subscription from "earliest" is complete."""
    create_subscription(table, "s", lambda snapshot: {0: 0, 1: 0})
    for i in range(3):
        put(table, f"{i}-a", f"{i}-b")
    assert purge(table, lambda name, member, sequences: sequences.first > 1).purged_files == 0
    assert purge(table, lambda name, member, sequences: sequences.last < 3).purged_files == 4


def test_send_is_routed_again_when_its_member_is_removed(storage: LocalStorage | ObjectStorage) -> None:
    """C4: files staged for a removed member are written again for the others, with properties and order."""
    log = DeltaLog(storage, "orders")
    change(log, members=3)
    files = staged(log, [str(i) for i in range(9)])
    route = log.snapshot.route_id
    change(log, members=2)
    sent = send(log, files, route)
    assert set(sent.sequences) == {0, 1}
    assert sum(r.count for r in sent.sequences.values()) == 9
    assert sorted(texts(log).values()) == [str(i) for i in range(9)]
    assert [storage.exists(f.path) for f in files] == [False, False, False]
    moved = next(f for f in sent.files if f.path not in {old.path for old in files})
    ours = log.snapshot.files[moved.path]
    rows = [b for b, _ in read_stored(storage, ours.hint, Ranges.of((ours.first, ours.last)), ["properties"])]
    assert rows[0].column("properties").to_pylist()[0] == [("color", "red")]


def change(log: DeltaLog, **fields: int) -> None:
    commit(
        log,
        lambda snapshot: Decision(
            "SET TBLPROPERTIES",
            [metadata_action(snapshot, snapshot.destination.changed_to(evolve(snapshot.destination, **fields)))],
        ),
    )


# -- foreign commits and damage -------------------------------------------------------------------------------------------
def test_foreign_commits_are_refused(table: DeltaLog) -> None:
    """C5: the error names the version of an append or delete by delta-rs, in readers that follow and in new ones."""
    from deltalake import DeltaTable, write_deltalake

    put(table, "a", "b")
    schema = pa.schema([*STORED_SCHEMA, *PARTITION_SCHEMA])
    row = pa.Table.from_pylist([{"ordinal": 0, "text": "foreign", "member": 0, "first_sequence": 99}], schema=schema)
    write_deltalake(table.storage.uri, row, mode="append")
    for log in (table, fresh(table)):
        with pytest.raises(ForeignWriteError, match=r"version 2 \(WRITE by .*delta-rs"):
            put(log, "c")
        with pytest.raises(ForeignWriteError):  # not only the first time
            log.refresh()
    table.storage.delete(commit_path(2))
    DeltaTable(table.storage.uri).delete("member = 0")
    with pytest.raises(ForeignWriteError, match=r"version 2 \(DELETE"):
        fresh(table).refresh()


def test_damaged_log_raises_unreadable_table_error(table: DeltaLog) -> None:
    """C5: a damaged, empty or wrong commit raises UnreadableTableError, and so does a Delta checkpoint that is needed."""
    put(table, "a", "b")
    for data in (
        b"{",
        b"",
        b'{"add":{"path":"m0-aaaaaaaaaaaa.parquet"}}\n',
        b'{"commitInfo":{"engineInfo":"spark-jms/1"}}\n{"txn":{}}\n',
    ):
        table.storage.put(commit_path(2), data)
        with pytest.raises((UnreadableTableError, ForeignWriteError), match="version 2|not written"):
            fresh(table).refresh()
        with pytest.raises((UnreadableTableError, ForeignWriteError)):
            table.refresh()
    table.storage.delete(commit_path(2))
    assert put(table, "c", "d")
    checkpoint(table, every=1)
    name = f"{LOG}/{2:020d}.checkpoint.parquet"
    whole = table.storage.get(name)
    assert whole is not None
    table.storage.put(name, whole[: len(whole) // 2])
    assert len(fresh(table).refresh().files) == 4  # the commit files have it all
    table.storage.delete(commit_path(0))
    with pytest.raises(UnreadableTableError, match="checkpoint"):
        fresh(table).refresh()
    with pytest.raises(InvalidDestinationError, match="jmsq apply"):
        DeltaLog(LocalStorage(table.storage.root / "nothing"), "nothing").refresh()  # type: ignore[union-attr]


def test_damaged_data_file_raises_unreadable_table_error(table: DeltaLog) -> None:
    """C5: a truncated data file, or one with a wrong number of rows, raises UnreadableTableError."""
    put(table, "a", "b", "c", "d")
    file = table.snapshot.member_files(0).files[0]
    whole = table.storage.get(file.path)
    assert whole is not None
    for data in (whole[: len(whole) // 2], b""):
        table.storage.put(file.path, data)
        with pytest.raises(UnreadableTableError, match=file.path):
            texts(fresh(table))
    table.storage.put(file.path, whole)
    with pytest.raises(UnreadableTableError, match="2 rows, the log says 3"):
        list(read_stored(table.storage, FileHint(file.path, 1, 3, file.bytes), Ranges.of((1, 3)), ["text"]))


# -- sleepers -------------------------------------------------------------------------------------------------------------
def cleaned_up(log: DeltaLog) -> None:
    """Write a Delta checkpoint and delete the log before it, as clean-up does after a day."""
    checkpoint(log, every=1)
    for version in range(log.snapshot.version + 1):
        log.storage.delete(commit_path(version))


def test_sleeping_writer_does_not_reuse_a_cleaned_up_version(table: DeltaLog) -> None:
    """C5: the next log file is missing because clean-up deleted it; the writer reloads the checkpoint and numbers on."""
    sleeper = fresh(table)
    put(sleeper, "a", "b")
    asleep = sleeper.snapshot
    for i in range(5):
        put(table, f"x{i}", f"y{i}")
    cleaned_up(table)
    assert not sleeper.append(asleep, "WRITE", [], {})  # slept between its refresh and its commit
    assert not table.storage.exists(commit_path(2))
    assert put(sleeper, "c", "d") == {0: Ranges.of((7, 7)), 1: Ranges.of((7, 7))}
    assert texts(sleeper) == texts(fresh(table))


# -- after housekeeping ---------------------------------------------------------------------------------------------------
def test_declarations_after_a_checkpoint_are_readable(table: DeltaLog) -> None:
    """C3, C16: a writer that started from a checkpoint writes a declaration that Delta reads (maps, not lists)."""
    from deltalake import DeltaTable

    put(table, "a", "b")
    checkpoint(table, every=1)
    late = fresh(table)
    create_subscription(late, "s", lambda snapshot: {0: 0, 1: 0})
    change(late, file_grace_ms=7_200_000)
    metadata = json.loads((late.storage.get(commit_path(3)) or b"").splitlines()[1])["metaData"]
    assert metadata["format"] == {"provider": "parquet", "options": {}}
    assert None not in metadata.values()
    assert metadata["configuration"]["delta.deletedFileRetentionDuration"] == "interval 7200 seconds"
    assert len(DeltaTable(late.storage.uri).file_uris()) == 2
    checkpoint(late, every=1)
    assert set(fresh(table).refresh().destination.subscriptions) == {"s"}


def test_other_engines_read_the_table_after_housekeeping(tmp_path: Path) -> None:
    """C3, C13: delta-rs, DuckDB and polars see the same messages after compaction, purge, checkpoints and clean-up."""
    from deltalake import DeltaTable

    log = DeltaLog(local_table(tmp_path / "domain", evolve(ORDERS, file_grace_ms=0)), "orders")
    create_subscription(log, "s", lambda snapshot: {0: 0, 1: 0})
    for i in range(30):
        put(log, f"{i}-a", f"{i}-b", f"{i}-c")
    expected = texts(log)
    assert compact(log).compacted_files == 60
    for i in range(12):
        put(log, f"late-{i}", f"later-{i}")
    assert texts(fresh(log)).items() >= expected.items()
    assert purge(log, lambda name, member, sequences: member == 0 and sequences.last <= 60).purged_files == 1
    checkpoint(log, every=1)
    before = len(list(log.storage.list("")))
    clean_up(log)
    assert len(list(log.storage.list(""))) < before
    put(log, "last", "the last")
    expected = texts(log)
    assert texts(fresh(log)) == expected
    t = DeltaTable(log.storage.uri).to_pyarrow_table(columns=["member", "first_sequence", "ordinal", "text"])
    found = {(r["member"], r["first_sequence"] + r["ordinal"]): r["text"] for r in t.to_pylist()}
    assert found == expected
    duckdb = pytest.importorskip("duckdb")
    rows = duckdb.from_arrow(t).query("t", "select member, first_sequence + ordinal, text from t").fetchall()
    assert {(m, s): x for m, s, x in rows} == expected
    polars = pytest.importorskip("polars")
    # The native reader of polars takes partition values from paths; ours are only in the log.
    frame = polars.read_delta(log.storage.uri, use_pyarrow=True)
    rows = frame.select("member", "first_sequence", "ordinal", "text").rows()
    assert {(m, first + ordinal): x for m, first, ordinal, x in rows} == expected


def test_table_restored_after_a_foreign_write_works_again(tmp_path: Path) -> None:
    """C3: the advice of ForeignWriteError works: Delta's RESTORE to the version before, for old and new readers."""
    from deltalake import DeltaTable, write_deltalake

    domain = create_domain(str(tmp_path / "root"))
    create_table(domain, "orders", STORED_SCHEMA, Destination("orders", "queue"))
    log = DeltaLog(domain.storage.child("orders"), "orders")
    put(log, "a")
    write_deltalake(log.storage.uri, DeltaTable(log.storage.uri).to_pyarrow_table(), mode="append")
    for reader in (log, fresh(log)):
        with pytest.raises(ForeignWriteError, match="Restore the table to version 1"):
            reader.refresh()
    DeltaTable(log.storage.uri).restore(1)
    put(log, "b")
    for reader in (log, fresh(log)):
        assert reader.refresh().last_sequence(0) == 2
        assert sum(f.rows for f in reader.snapshot.files.values()) == 2
    assert sorted(DeltaTable(log.storage.uri).to_pyarrow_table()["text"].to_pylist()) == ["a", "b"]


def test_foreign_change_of_table_properties_is_no_foreign_write(table: DeltaLog) -> None:
    """C3: another engine writes the same schema in another spelling when it sets a property; the property then counts."""
    from deltalake import DeltaTable

    DeltaTable(table.storage.uri).alter.set_table_properties({"a.note": "seen"}, raise_if_not_exists=False)
    assert table.refresh().metadata["configuration"]["a.note"] == "seen"
    DeltaTable(table.storage.uri).alter.set_table_properties({"jmsq.formatVersion": "99"}, raise_if_not_exists=False)
    with pytest.raises(FormatVersionError, match="format version 99"):
        _ = table.refresh().destination
