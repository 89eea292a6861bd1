"""Damaged rows are isolated (S1, S2, S9): the store refuses as a whole, by name, or refuses exactly the concerned record sets.

First the pure rules, on random rows and outcomes; then the store, on both databases.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store import (
    Put,
    RecordCorruptError,
    StoreCorruptError,
    StoreVersionError,
    TransactionInDoubtError,
    open_store,
)
from spark_jms.store.engine import connections
from spark_jms.store.engine.entry_log import EntryLog, Loaded, Proposal, Verdict
from spark_jms.store.jdbc.content import OutcomeRow, StoredOutcome, committed, prepared, read_outcomes, restore
from spark_jms.store.jdbc.database import Database
from spark_jms.store.jdbc.rows import OBJECT, RECORD, SESSION, WAITER, Row, StoredRow
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.jdbc.store import open_backend
from spark_jms.store.kinds.administration import check, salvage
from spark_jms.store.ledger.codec import encode, unpack
from spark_jms.store.ledger.record import Change, Connected, Entry, Opened, Prepared, Restored, Written
from spark_jms.store.ledger.store import LedgerStore

# ---- rows: which record set does each column concern?


def found(row: Row, persistent: bool = True) -> StoredRow:
    return StoredRow(row, row.identity, row.checksum, "sib000" if persistent else "sib001", persistent)


def test_a_checksum_covers_every_column() -> None:
    """S1: the identity covers only the columns that tell the record set."""
    for class_id in (RECORD, OBJECT):
        row = Row(1, 2, class_id, "k", 3, b"data")
        for change in (
            {"id": 2},
            {"parent_id": 1},
            {"class_id": SESSION},
            {"name": "j"},
            {"number": 4},
            {"data": b"date"},
        ):
            other = replace(row, **change)  # type: ignore[arg-type]
            assert other.checksum != row.checksum
            whose = {"id", "parent_id", "class_id"} | ({"name"} if class_id == RECORD else set())
            assert (other.identity != row.identity) == (change.keys() <= whose)


COLUMNS = st.sampled_from(["id", "parent_id", "class_id", "name", "number", "data", "identity", "checksum"])


def damage(one: StoredRow, column: str, random: Random) -> StoredRow:
    if column in ("identity", "checksum"):
        return replace(one, **{column: getattr(one, column) ^ (1 << random.randrange(32))})
    value = getattr(one.row, column)
    if column == "data":
        other: Any = random.choice([b"", b"another", value[:-1] + b"\xff"])
    elif column == "name":
        other = value + "x"
    elif column == "class_id":
        other = random.choice([kind for kind in range(9) if kind != value])
    else:
        other = value ^ (1 << random.randrange(6))
    return one if other == value else replace(one, row=replace(one.row, **{column: other}))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 100_000), st.lists(COLUMNS, min_size=1, max_size=2))
def test_damage_of_any_row_is_refused_by_name(seed: int, columns: list[str]) -> None:
    """S1, S9: a lost identity refuses the whole store, any other column its record set, a non-persistent row nothing."""
    random = Random(seed)
    rows = [found(Row(number, 0, RECORD, f"r{number}", number + 7, b"")) for number in range(1, 6)]
    for number in range(6, 30):
        rows.append(found(Row(number, random.randint(1, 5), OBJECT, f"k{number}", 0, random.randbytes(4))))
    sessions = [found(Row(number, 0, SESSION, f"s{number}", 0, b"label"), False) for number in range(30, 33)]
    sessions.append(found(Row(33, 1, WAITER, "s30", 0, b""), False))
    whole = restore([*rows, *sessions], "db")
    assert (whole.damaged, whole.passed_over, whole.refusals) == ((), (), ())

    index = random.randrange(len(rows) + len(sessions))
    one = (rows + sessions)[index]
    bad = one
    for column in columns:
        bad = damage(bad, column, random)
    if bad == one:
        return
    mixed = [*rows, *sessions]
    mixed[index] = bad
    random.shuffle(mixed)
    read = restore(mixed, "db")
    assert len(read.damaged) + len(read.passed_over) + len(read.refusals) >= 1
    if not one.persistent:
        assert not read.damaged
        assert not read.refusals
        return
    touched = {"id", "parent_id", "class_id", *(["name"] if one.row.class_id == RECORD else [])}
    changed = {name for name in vars(one.row) if getattr(one.row, name) != getattr(bad.row, name)}
    misfit = bool(changed) or bad.checksum != one.checksum
    if changed & touched or (misfit and bad.identity != one.identity):
        assert read.refusals
        return
    name = one.row.name if one.row.class_id == RECORD else f"r{one.row.parent_id}"
    assert not read.refusals
    assert {damaged.name for damaged in read.damaged} == {name}
    assert one.table in read.damaged[0].file
    kept = {entry.name: entry for entry in read.entries if isinstance(entry, Restored)}
    was = {entry.name: entry for entry in whole.entries if isinstance(entry, Restored)}
    assert kept == {other: entry for other, entry in was.items() if other != name}
    assert all(key.subject != name for key, row in read.rows if row.class_id in (RECORD, OBJECT))


# ---- outcomes: unknown is never "not committed"


def tell(row: OutcomeRow) -> StoredOutcome:
    return StoredOutcome(row, row.identity, row.checksum)


@dataclass(frozen=True)
class Sent:
    token: str
    base: int
    batch: int


def chain(random: Random) -> tuple[list[OutcomeRow], list[Sent]]:
    """Consecutive batches; each append was made on an earlier position."""
    rows, sent, position = [], [], 0
    for number in range(random.randint(2, 8)):
        tokens = tuple(f"t{number}-{one}" for one in range(random.randint(1, 3)))
        base, position = position, position + random.randint(len(tokens), 9)
        rows.append(committed(tokens, base, position))
        sent += [Sent(token, random.randint(max(0, base - 5), base), number) for token in tokens]
    return rows, sent


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 100_000))
def test_a_damaged_outcome_is_unknown(seed: int) -> None:
    """S2, S9: an append that was kept, sent again, is never done twice: it is known, or its outcome is unknown. One that
    was not kept is, if it was made after the damage."""
    random = Random(seed)
    rows, sent = chain(random)
    lost = set(random.sample(range(len(rows)), random.randint(0, len(rows))))
    gone = {number for number in lost if random.random() < 0.3 and number < len(rows) - 1}
    told = [
        replace(tell(row), checksum=1, outcome=replace(row, data=b"??") if random.random() < 0.5 else row)
        if number in lost
        else tell(row)
        for number, row in enumerate(rows)
        if number not in gone
    ]
    random.shuffle(told)
    read = read_outcomes(told, "xacts")
    assert read.position == rows[-1].position
    assert read.refusals == []
    assert len(read.passed_over) == len(read.kept) == len(lost - gone)
    entries: tuple[Entry, ...] = (Connected("s", ""), Opened("r", 1, "s"))
    log = EntryLog("i", Loaded(read.position, entries, tuple(read.outcomes), read.known_since))
    written = (Written((Change("r", 1, (Put("k", b"v"),)),)),)
    for one in sent:
        shared = log.begin("w")
        verdict = log.propose(Proposal(one.token, one.base, written, again=True), shared)
        if one.batch in lost:
            assert verdict is Verdict.UNKNOWN
        else:
            assert verdict is Verdict.TAKEN
        assert shared.entries == []
    late = log.begin("w")
    assert log.propose(Proposal("late", read.position, written, again=True), late) is Verdict.TAKEN
    assert late.entries != []


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 100_000), st.data())
def test_a_flipped_byte_of_a_promise_refuses_its_record_set_or_the_store(seed: int, draw: st.DataObject) -> None:
    """S2, S9: the record set of the damaged part is refused; if the names of the locked record sets are lost, the store is."""
    random = Random(seed)
    changes = tuple(
        Change(f"r{number}", 1, (Put("k", random.randbytes(random.randint(1, 20))),))
        for number in range(random.randint(1, 4))
    )
    row = prepared("tx", changes, 3, 4)
    whole = read_outcomes([tell(row)], "xacts")
    assert whole.entries == (Prepared("tx", changes, restored=True),)
    at = draw.draw(st.integers(0, len(row.data) - 1))
    bad = replace(row, data=row.data[:at] + bytes([row.data[at] ^ draw.draw(st.integers(1, 255))]) + row.data[at + 1 :])
    read = read_outcomes([StoredOutcome(bad, row.identity, row.checksum)], "xacts")
    parts = unpack(row.data)
    assert parts is not None
    content = sum(len(part) for part in parts[1:] if isinstance(part, bytes))
    if at < len(row.data) - content:
        assert len(read.refusals) == 1
        assert read.entries == ()
        return
    assert read.refusals == []
    (lost,) = read.damaged
    (left,) = read.prepared
    assert left == Prepared(
        "tx", tuple(replace(one, operations=()) if one.name == lost.name else one for one in changes), restored=True
    )
    assert read.kept == ["x:tx"]


@pytest.mark.parametrize("column", ["xid", "state", "base", "position"])
def test_an_outcome_without_identity_refuses_the_store(column: str) -> None:
    """S2, S9."""
    for row in (committed(("t",), 3, 4), prepared("tx", (Change("r", 1, (Put("k", b"v"),)),), 3, 4)):
        value = getattr(row, column)
        bad = replace(row, **{column: value + 1 if isinstance(value, int) else value + "x"})
        read = read_outcomes([StoredOutcome(bad, row.identity, row.checksum)], "xacts")
        assert len(read.refusals) == 1
        assert "identity" in str(read.refusals[0])


def test_a_promise_with_a_damaged_checksum_refuses_all_its_record_sets() -> None:
    """S2, S9."""
    row = prepared("tx", (Change("r", 1, (Put("k", b"v"),)), Change("s", 1, ())), 3, 4)
    for bad in (StoredOutcome(row, row.identity ^ 1, row.checksum), StoredOutcome(row, row.identity, row.checksum ^ 1)):
        read = read_outcomes([bad], "xacts")
        assert [damaged.name for damaged in read.damaged] == ["r", "s"]
        assert len(read.prepared) == 1


# ---- the store


@pytest.fixture(params=["sqlite", "postgresql"])
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"jdbc:sqlite:///{tmp_path}/s.db?retry_interval_ms=10"
    return str(request.getfixturevalue("postgresql").uri(retry_interval_ms=10))


def sql(uri: str, statement: str) -> list[tuple[Any, ...]]:
    """Runs a statement as another program would; @ is the schema."""
    parsed = parse_jdbc(uri)
    connection = Database(parsed).connect(parsed.path if parsed.dialect == "sqlite" else "")
    try:
        with connection.transaction("IMMEDIATE"):
            done = connection.run(statement.replace("@", f"{parsed.schema}." if parsed.schema else ""))
            return [tuple(row) for row in done.all()] if done.returns_rows else []
    finally:
        connection.close()


RECORDS = ["r0", "r1", "r2", "r3"]


def fill(uri: str) -> dict[str, dict[str, bytes]]:
    with open_store(uri) as store, store.connect() as session:
        handles = [session.open(name) for name in RECORDS]
        for handle in handles:
            handle.commit([Put("k", f"value of {handle.name}".encode()), Put(f"only in {handle.name}", b"x")])
        session.prepare("tx", {handle: [Put("p", f"promised to {handle.name}".encode())] for handle in handles[:2]})
    return {name: {"k": f"value of {name}".encode(), f"only in {name}": b"x"} for name in RECORDS}


def persistent(uri: str) -> list[tuple[Any, ...]]:
    return sorted(sql(uri, "SELECT * FROM @sib000"))


def use(uri: str, content: dict[str, dict[str, bytes]], refused: set[str]) -> None:
    """Exactly `refused` are refused; all others have their content and take one more commit."""
    with open_store(uri, create=False) as store, store.connect() as session:
        assert store.damaged().keys() == refused
        assert store.names() == RECORDS
        for name in RECORDS:
            if name in refused:
                for action in (store.peek, session.open, store.info):
                    with pytest.raises(RecordCorruptError, match=f"'{name}' is damaged: .*sib"):
                        action(name)  # type: ignore[operator]
                continue
            assert store.peek(name) == content[name]
            handle = session.open(name)
            assert handle.objects() == content[name]
            content[name]["more"] = b"%d" % handle.epoch
            handle.commit([Put("more", content[name]["more"])])
        if refused & {"r0", "r1"}:
            assert store.in_doubt() == {"tx": ("r0", "r1")}
            with pytest.raises(RecordCorruptError):
                store.resolve("tx", commit=True)
            for name in {"r0", "r1"} - refused:
                session.cancel(name)


@pytest.mark.parametrize(
    ("where", "column"),
    [
        ("name = 'only in r0'", "checksum"),
        ("name = 'only in r2'", "data"),
        ("name = 'only in r2'", "identity"),
        ("name = 'r1'", "number"),
        ("name = 'r3'", "checksum"),
        ("name = 'only in r2'", "parent_id"),
        ("name = 'r3'", "name"),
        ("name = 'r0'", "class_id"),
        ("name = 'r0'", "id"),
    ],
)
def test_a_damaged_row_is_named_and_left_unchanged(
    uri: str, where: str, column: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S1, S9: every later engine refuses its record set; the row stays as it is."""
    content = fill(uri)
    (name,) = [row[0] for row in sql(uri, f"SELECT name FROM @sib000 WHERE {where}")]
    value = {"data": "''", "name": "'rx'"}.get(column, f"{column} + 1000")
    sql(uri, f"UPDATE @sib000 SET {column} = {value} WHERE {where}")
    refused = {name.removeprefix("only in ")}
    rows = {row for row in persistent(uri) if name in row or "rx" in row}
    if column in ("parent_id", "name", "class_id", "id"):
        before = persistent(uri)
        for _ in range(2):
            with pytest.raises(StoreCorruptError, match="identity") as caught:
                open_store(uri)
            assert "sib000" in str(caught.value)
        assert persistent(uri) == before
        assert any("the whole store is refused" in problem for problem in check(uri).problems)
        return
    for _ in range(3):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "store.jdbc"):
            use(uri, content, refused)
        assert len([one for one in caplog.records if "is damaged: " in one.message]) == 1
        assert rows <= set(persistent(uri))
    found = check(uri)
    assert len(found.problems) == 1
    assert f"record set '{refused.pop()}' is damaged" in found.problems[0]
    assert found.record_count == 3


def test_a_damaged_promise_stays_in_doubt(uri: str) -> None:
    """S2, S9: it cannot be resolved; the record set of its damaged part is refused, and the others continue with their keys
    locked. Salvage copies it."""
    content = fill(uri)
    (data,) = [bytes(row[0]) for row in sql(uri, "SELECT data FROM @sibxacts WHERE state = 'PREPARED'")]
    at = data.index(b"promised to r1")
    bad = data[:at] + b"P" + data[at + 1 :]
    blob = f"x'{bad.hex()}'" if "sqlite" in uri else f"decode('{bad.hex()}', 'hex')"
    sql(uri, f"UPDATE @sibxacts SET data = {blob} WHERE state = 'PREPARED'")
    row = sql(uri, "SELECT * FROM @sibxacts WHERE state = 'PREPARED'")
    for _ in range(2):
        use(uri, content, {"r1"})
        assert sql(uri, "SELECT * FROM @sibxacts WHERE state = 'PREPARED'") == row
    with open_store(uri) as store, store.connect() as session:
        handle = session.open("r0")
        with pytest.raises(TransactionInDoubtError):
            handle.commit([Put("p", b"other")])
    done = salvage(uri, f"memory://{bad[:8].hex()}-{at}-{id(uri)}")
    assert done.uncertain == ("r1",)
    assert done.prepared_count == 1


def test_a_damaged_outcome_refuses_nothing(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    """S2, S9: and who asks for it is told that it is unknown; no trim removes it."""
    content = fill(uri)
    newest = "position = (SELECT max(position) FROM @sibxacts)"
    sql(uri, f"UPDATE @sibxacts SET checksum = checksum + 1 WHERE {newest} AND state = 'COMMITTED'")
    (damaged,) = [row for row in sql(uri, "SELECT * FROM @sibxacts ORDER BY position") if "COMMITTED" in row][-1:]
    token = msgspec.msgpack.decode(bytes(damaged[4]), type=list[str])[0]
    with caplog.at_level(logging.WARNING, "store.jdbc"):
        use(uri, content, set())
    assert "which commits it recorded is unknown" in caplog.text
    backend = open_backend(uri)
    try:
        server = backend._route.finder._engine.server  # type: ignore[attr-defined]
        entries = encode([Connected("new", "")])
        answer = server.answer("client", connections.Append("before", damaged[2], token, damaged[2], True, entries))
        assert isinstance(answer, connections.Paged)
        assert answer.verdict == Verdict.UNKNOWN.value
        engine = backend._route.finder._engine  # type: ignore[attr-defined]
        engine.persistence._writer._outcome_count = 255
        with LedgerStore(backend).connect():
            pass
    finally:
        backend.release()
    assert damaged in sql(uri, "SELECT * FROM @sibxacts")
    found = check(uri)
    assert ["nothing is refused" in problem for problem in found.problems] == [True]


def test_trimming_keeps_damaged_outcomes(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: trimming removes all other outcomes of that time."""
    fill(uri)
    sql(uri, "UPDATE @sibxacts SET checksum = checksum + 1 WHERE base = 0")
    (damaged,) = sql(uri, "SELECT * FROM @sibxacts WHERE base = 0")
    monkeypatch.setattr("spark_jms.store.jdbc.persistence.OUTCOMES_KEPT", 3)
    monkeypatch.setattr("spark_jms.store.jdbc.persistence.TRIM_EVERY", 1)
    with open_store(uri) as store, store.connect() as session:
        session.open("r2").commit([Put("k", b"1")])
    kept = sql(uri, "SELECT * FROM @sibxacts WHERE state = 'COMMITTED'")
    assert damaged in kept
    assert len(kept) <= 5


@pytest.mark.parametrize("column", ["name", "parent_id", "data", "checksum", "class_id"])
def test_a_damaged_session_row_frees_what_the_session_held(uri: str, column: str) -> None:
    """S1, S9: only the session is lost; the row is logged and stays."""
    content = fill(uri)
    backend = open_backend(uri)
    LedgerStore(backend).connect("mine").open("r3")
    backend._route.finder.close()  # as after kill -9
    value = {"name": "'x'", "data": "''"}.get(column, f"{column} + 1000")
    sql(uri, f"UPDATE @sib001 SET {column} = {value} WHERE class_id = 3")
    rows = sql(uri, "SELECT * FROM @sib001 WHERE class_id IN (3, 1003)")
    use(uri, content, set())
    assert {*rows} <= {*sql(uri, "SELECT * FROM @sib001")}
    backend.release()


def test_a_damaged_engine_row_is_ignored(uri: str) -> None:
    """S1, S9."""
    content = fill(uri)
    sql(uri, "UPDATE @sib001 SET data = '' WHERE class_id = 6")
    use(uri, content, set())
    assert check(uri).problems == ()


def test_a_record_set_without_a_row_refuses_the_store(uri: str) -> None:
    """S1, S9: its objects and promises exist, but its name is unknown."""
    fill(uri)
    sql(uri, "DELETE FROM @sib000 WHERE name = 'r2'")
    with pytest.raises(StoreCorruptError, match="belongs to record set"):
        open_store(uri)
    sql(uri, "DELETE FROM @sib000 WHERE name IN ('k', 'only in r2')")
    sql(uri, "DELETE FROM @sib000 WHERE name IN ('r1', 'only in r1')")
    with pytest.raises(StoreCorruptError, match="transaction tx"):
        open_store(uri)


def test_tables_of_an_older_version_are_refused(tmp_path: Path) -> None:
    """S3, S9: by opening, check and salvage, with a named error."""
    uri = f"jdbc:sqlite:///{tmp_path}/s.db"
    fill(uri)
    with closing(sqlite3.connect(f"{tmp_path}/s.db")) as connection, connection:
        connection.execute("ALTER TABLE sib000 DROP COLUMN identity")
    with closing(sqlite3.connect(f"{tmp_path}/s.db-sibowner")) as connection, connection:
        connection.execute("UPDATE sibowner SET version = 1")
    with pytest.raises(StoreVersionError, match="version 1"):
        open_store(uri)
    assert "version 1" in check(uri).problems[0]
    with pytest.raises(StoreVersionError, match="version 1"):
        salvage(uri, str(tmp_path / "t"))


def test_new_damage_found_while_regaining_the_lock_disables_the_engine(tmp_path: Path) -> None:
    """S2, S6, S9: the damage may concern the very commit that is in doubt; the next engine decides what to refuse."""
    from spark_jms.store.engine.entry_log import LedgerBatch, OwnershipLostError

    uri = f"jdbc:sqlite:///{tmp_path}/s.db"
    content = fill(uri)
    backend = open_backend(uri)
    persistence = backend._route.finder._engine.persistence  # type: ignore[attr-defined]
    ledger = backend._route.finder._engine.server._log.ledger  # type: ignore[attr-defined]
    batch = LedgerBatch(0, (), ("never",), ledger, ledger)
    assert not persistence._was_kept(batch)
    sql(uri, "UPDATE sib000 SET checksum = 1 WHERE name = 'only in r2'")
    with pytest.raises(OwnershipLostError, match="damaged"):
        persistence._was_kept(batch)
    backend.release()
    use(uri, content, {"r2"})


def _refused(uri: str, table: str) -> set[str] | None:
    """None when the whole store is refused because of this table."""
    try:
        with open_store(uri) as store:
            return set(store.damaged())
    except StoreCorruptError as error:
        if table not in str(error):
            raise
        return None


@pytest.mark.parametrize("seed", range(40))
def test_damage_of_any_column_is_refused_by_name(tmp_path: Path, seed: int) -> None:
    """S9: the store is refused by name, or everything is right except the record sets that are refused by name."""
    uri, random = f"jdbc:sqlite:///{tmp_path}/s.db", Random(seed)
    content = fill(uri)
    tables = ["sib000", "sib000", "sib001", "sibxacts", "sibkeys", "sibclassmap", "siblisting"]
    table = random.choice(tables)
    columns = [row[1] for row in sql(uri, f"PRAGMA table_info({table})")]
    rowid, column = random.choice(sql(uri, f"SELECT rowid FROM {table}"))[0], random.choice(columns)
    (old,) = sql(uri, f"SELECT {column} FROM {table} WHERE rowid = {rowid}")[0]
    if isinstance(old, int):
        new = random.choice(
            [
                f"{old ^ (4096 << random.randrange(8))}",
                str(2**62),
                *(["'no number'"] if "sibx" in table or "sib0" in table else []),
            ]
        )
    elif isinstance(old, str):
        new = random.choice([f"'{old}x'", "x'ff00'"])
    else:
        new = random.choice([f"x'{bytes(old).hex()}00'", "x''", "'no bytes'"])
    sql(uri, f"UPDATE {table} SET {column} = {new} WHERE rowid = {rowid}")
    if (refused := _refused(uri, table)) is None:
        return
    assert len(refused) <= (2 if table == "sibxacts" else 1)
    if table not in ("sib000", "sibxacts"):
        assert not refused
    for _ in range(2):
        use(uri, content, refused)
