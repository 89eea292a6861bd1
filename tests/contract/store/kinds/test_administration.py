"""`jmsq store` on every kind of store: create, ddl, check, dump, compact, migrate, lock, resolve (C14, C16, S1)."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_jms.cli.__main__ import cli
from spark_jms.store import Put, StoreInUseError, StoreUriError, StoreVersionError, open_store
from spark_jms.store.kinds.administration import check, compact, dump, lock_status, migrate
from tests.harness.stores.journal_files import frames_end

KINDS = ("memory", "file", "sqlite", "postgresql", "replicated")


@pytest.fixture
def uri_of(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    counter = itertools.count()

    def make(kind: str) -> str:
        number = next(counter)
        if kind == "postgresql":
            return str(request.getfixturevalue("postgresql").uri())
        if kind == "replicated":
            return str(request.getfixturevalue("replicated").uri())
        path = tmp_path / f"store{number}"
        return {
            "memory": f"memory://{tmp_path.name}-{number}",
            "file": str(path),
            "sqlite": f"jdbc:sqlite:///{path}.db",
        }[kind]

    return make


def run(*arguments: str, code: int = 0) -> Result:
    done = CliRunner().invoke(cli, ["store", *arguments])
    assert done.exit_code == code, done.output
    return done


def document(*arguments: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code).output)


def fill(uri: str) -> None:
    with open_store(uri) as store, store.connect("filler") as session:
        for number in range(7):
            handle = session.open(f"r{number}")
            for turn in range(number + 1):
                handle.commit([Put("k", b"%d" % turn), Put(f"k{turn}", bytes(range(256)))])
            handle.close()
            session.open(f"r{number}").close()
        session.prepare("in-doubt", {session.open("r1"): [Put("k", b"promised")]})


def content(uri: str) -> list[Any]:
    with open_store(uri, create=False) as store:
        records = [(record.name, record.epoch, record.objects) for record in dump(store)]
        return [*[(name, epoch, sorted(objects)) for name, epoch, objects in records], store.in_doubt()]


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(KINDS, 2)))
def test_a_migration_loses_nothing(uri_of: Callable[[str], str], source: str, target: str) -> None:
    """C14, S1: from any kind to any kind: names, epochs, objects, prepared transactions; repeating it is no error."""
    here, there = uri_of(source), uri_of(target)
    fill(here)
    before = content(here)
    moved = migrate(here, there)
    assert (moved.record_count, moved.prepared_count, moved.there_already) == (7, 1, 0)
    assert content(there) == before == content(here)
    assert migrate(here, there).there_already == 8
    with open_store(there) as store, store.connect() as session:
        assert session.open("r3").epoch == before[3][1] + 1  # an old owner stays fenced
        store.resolve("in-doubt", commit=True)
        assert store.peek("r1")["k"] == b"promised"
    with pytest.raises(StoreInUseError, match="r3"):
        migrate(here, there)


def test_a_store_in_use_is_not_migrated(uri_of: Callable[[str], str]) -> None:
    """S3."""
    here, there = uri_of("file"), uri_of("sqlite")
    fill(here)
    with open_store(here) as store, store.connect("a query"), pytest.raises(StoreInUseError, match="a query"):
        migrate(here, there)


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgresql", "replicated"])
def test_every_command_works_on_every_store(uri_of: Callable[[str], str], kind: str) -> None:
    """C14: with text and JSON output."""
    uri = uri_of(kind)
    assert document("create", uri) == {"store": uri, "records": 0}
    fill(uri)
    assert document("create", uri)["records"] == 7
    checked = document("check", uri)
    assert (checked["record_count"], checked["in_doubt"], checked["problems"]) == (7, ["in-doubt"], [])
    assert "all checksums are correct" in run("check", uri).output
    lines = [json.loads(line) for line in run("dump", uri, "--json").output.splitlines()]
    assert [line["name"] for line in lines] == [f"r{number}" for number in range(7)]
    assert lines[0]["objects"] == {"k": 1, "k0": 256}
    assert run("dump", uri).output.startswith("r0  epoch 2")
    assert document("compact", uri)["done"]
    assert content(uri)[-1] == {"in-doubt": ("r1",)}
    assert document("resolve", uri) == {"in_doubt": {"in-doubt": ["r1"]}}
    run("resolve", uri, "--transaction", "in-doubt", code=2)
    assert document("resolve", uri, "--transaction", "in-doubt", "--rollback") == {"in_doubt": {}}
    run("resolve", uri, "--transaction", "in-doubt", "--commit", code=1)
    assert "7 record set(s)" in run("migrate", uri, uri_of("file")).output


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_lock_names_owner_start_and_incarnation(uri_of: Callable[[str], str], kind: str) -> None:
    """C14, S4."""
    import os

    uri = uri_of(kind)
    fill(uri)
    free = document("lock", uri)
    assert (free["held"], free["answers"]) == (False, False)
    with open_store(uri):
        held = document("lock", uri)
        assert (held["held"], held["answers"], held["pid"]) == (True, True, os.getpid())
        assert held["incarnation"] not in ("", free["incarnation"])
        assert held["engine"] == free["engine"]
        assert held["since_ms"] > free["since_ms"]
        assert "it answers" in run("lock", uri).output
    assert ": free" in run("lock", uri).output


def test_the_ddl_is_printed_without_a_connection() -> None:
    """S1."""
    printed = run("ddl", "jdbc:postgresql://nobody@nowhere.invalid/db?schema=mq&prefix=AB").output
    assert printed.count("CREATE TABLE mq.ab") == 8
    assert "BYTEA" in printed


def test_check_names_damage_and_sets_the_exit_code(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    """S9, C14."""
    uri = uri_of("sqlite")
    fill(uri)
    with closing(sqlite3.connect(uri.removeprefix("jdbc:sqlite://"))) as connection, connection:
        connection.execute("UPDATE sib000 SET data = x'00' WHERE name = 'k0'")
    connection.close()
    problems = document("check", uri, code=1)["problems"]
    assert len(problems) == 7
    assert "'k0'" in problems[0]
    journal = tmp_path / "damaged"
    fill(str(journal))
    file = next(journal.glob("journal-*.log"))
    whole = file.read_bytes()
    data = flip(file, whole.rindex(bytes(range(256))))
    (problem,) = document("check", str(journal), code=1)["problems"]
    assert problem.startswith(f"record set 'r6' is damaged: {file}, bytes ")
    run("migrate", str(journal), str(tmp_path / "refused"), code=1)
    dumped = [json.loads(line) for line in run("dump", str(journal), "--json").output.splitlines()]
    assert [record["name"] for record in dumped if "damage" in record] == ["r6"]
    assert [record["name"] for record in dumped] == [f"r{number}" for number in range(7)]
    assert "record set 'r6' is damaged" in run("dump", str(journal)).output
    assert file.read_bytes().startswith(data)
    file.write_bytes(whole[:100] + b"?" + whole[101:])
    assert "is damaged at byte" in document("check", str(journal), code=1)["problems"][0]


def test_a_file_store_compacts_while_it_is_open(tmp_path: Path) -> None:
    """S9: its sessions continue."""
    with open_store(str(tmp_path / "s")) as store, store.connect() as session:
        handle = session.open("r")
        for number in range(200):
            handle.commit([Put("k", b"%d" % number * 100)])
        before = sum(file.stat().st_size for file in (tmp_path / "s").glob("journal-*.log"))
        run("compact", str(tmp_path / "s"))
        assert sum(file.stat().st_size for file in (tmp_path / "s").glob("journal-*.log")) < before / 20
        handle.commit([Put("k", b"last")])
    with open_store(str(tmp_path / "s")) as store:
        assert store.peek("r") == {"k": b"last"}


def test_errors_are_one_line(uri_of: Callable[[str], str]) -> None:
    """C14: with the name of the error and its advice."""
    done = CliRunner().invoke(cli, ["store", "check", "jdbc:sqlite:///nowhere/at/all.db"])
    assert done.exit_code == 1
    assert "jmsq store create" in done.output
    uri = uri_of("sqlite")
    fill(uri)
    with closing(sqlite3.connect(uri.removeprefix("jdbc:sqlite://") + "-sibowner")) as connection, connection:
        connection.execute("UPDATE sibowner SET version = 7")
    connection.close()
    with pytest.raises(StoreVersionError):
        open_store(uri)


def of(uri: str) -> dict[str, tuple[int, dict[str, bytes]]]:
    with open_store(uri, create=False) as store:
        return {record.name: (record.epoch, dict(record.objects)) for record in dump(store)}


def flip(file: Path, at: int) -> bytes:
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    return bytes(data)


def test_a_damaged_file_store_is_salvaged_around_the_damage(tmp_path: Path) -> None:
    """S9: salvage copies what stands before and after the damage, names what is lost, and leaves the source as it is."""
    source = str(tmp_path / "source")
    with open_store(source) as store, store.connect() as session:
        handle, other = session.open("r"), session.open("other")
        handle.commit([Put("before", b"1"), Put("again", b"1")])
        file = next(Path(source).glob("journal-*.log"))
        at = frames_end(file)
        handle.commit([Put("lost", b"2"), Put("again", b"2")])
        end = frames_end(file)
        handle.commit([Put("again", b"3")])
        other.commit([Put("k", b"v")])
        session.open("new").commit([Put("k", b"whole")])
    damaged = flip(file, at + 40)
    run("check", source, code=1)
    run("migrate", source, str(tmp_path / "refused"), code=1)
    target = f"jdbc:sqlite:///{tmp_path}/target.db"
    done = document("migrate", "--salvage", source, target, code=1)
    assert done["uncertain"] == ["other", "r"]
    assert len(done["left_out"]) == 1
    assert f"bytes {at} to {end}" in done["left_out"][0]
    found = of(target)
    assert {name: objects for name, (_, objects) in found.items()} == {
        "r": {"before": b"1", "again": b"3"},
        "other": {"k": b"v"},
        "new": {"k": b"whole"},
    }
    assert found["new"][0] == 1
    assert found["r"][0] == 1 + end - at  # an owner whose entry is lost stays fenced
    assert file.read_bytes() == damaged
    shown = run("migrate", "--salvage", source, target, code=1).output
    assert "3 were there before" in shown
    assert "may have lost changes: other, r" in shown


def test_a_file_store_is_salvaged_without_its_opening_entries(tmp_path: Path) -> None:
    """S9: entries that were made on lost entries count all the same."""
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    with open_store(source) as store, store.connect() as session:
        file = next(Path(source).glob("journal-*.log"))
        at = frames_end(file)
        handle = session.open("r")
        handle.commit([Put("k", b"1")])
        handle.close()
        session.prepare("tx", {session.open("r"): [Put("k", b"2")]})
    flip(file, at + 40)
    done = document("migrate", "--salvage", source, target, code=1)
    assert done["uncertain"] == ["r"]
    assert done["prepared_count"] == 1
    epoch, objects = of(target)["r"]
    assert epoch > 2
    assert objects == {"k": b"1"}


@pytest.mark.parametrize("kind", ["file", "sqlite", "postgresql"])
def test_salvage_migrates_a_healthy_store_and_refuses_one_in_use(uri_of: Callable[[str], str], kind: str) -> None:
    """S9, S3."""
    source, target = uri_of(kind), uri_of("file")
    fill(source)
    assert document("migrate", "--salvage", source, target)["left_out"] == []
    assert content(target) == content(source)
    with open_store(source) as store, store.connect():
        assert "is used" in run("migrate", "--salvage", source, uri_of("file"), code=1).output


def test_a_store_in_memory_cannot_be_salvaged(tmp_path: Path) -> None:
    """S9."""
    assert "can be salvaged" in run("migrate", "--salvage", "memory://x", str(tmp_path / "no"), code=1).output


def test_a_damaged_database_is_salvaged_around_the_damage(uri_of: Callable[[str], str], tmp_path: Path) -> None:
    """S9: salvage names the record set of a damaged object, leaves out a damaged record set, and copies the rest."""
    source, target = uri_of("sqlite"), str(tmp_path / "target")
    fill(source)
    whole = of(source)
    with closing(sqlite3.connect(source.removeprefix("jdbc:sqlite://"))) as connection, connection:
        connection.execute(
            "UPDATE sib000 SET data = x'00' WHERE name = 'k3' AND parent_id = (SELECT id FROM sib000 WHERE name = 'r4')"
        )
        connection.execute("UPDATE sib000 SET number = 99 WHERE name = 'r1'")
        before = connection.execute("SELECT * FROM sib000 ORDER BY id").fetchall()
    connection.close()
    done = document("migrate", "--salvage", source, target, code=1)
    assert done["uncertain"] == ["r1", "r4"]
    said = "\n".join(done["left_out"])
    assert "'k3'" in said
    assert "'r1'" in said
    assert "in-doubt" in said
    found = of(target)
    assert "r1" not in found
    assert found["r4"][1].keys() == whole["r4"][1].keys() - {"k3"}
    assert {name: found[name] for name in ("r0", "r2", "r3", "r5", "r6")} == {
        name: whole[name] for name in ("r0", "r2", "r3", "r5", "r6")
    }
    with closing(sqlite3.connect(source.removeprefix("jdbc:sqlite://"))) as connection, connection:
        assert connection.execute("SELECT * FROM sib000 ORDER BY id").fetchall() == before
    connection.close()


@pytest.mark.parametrize("uri", ["foo://x", "file:relative"])
def test_check_reports_a_uri_that_names_no_store(uri: str) -> None:
    """C14: as a problem of the report, so that a script finds it in the JSON document."""
    checked = check(uri)
    assert (checked.record_count, checked.object_count, checked.object_bytes, checked.in_doubt) == (0, 0, 0, ())
    assert [uri in problem for problem in checked.problems] == [True]
    with pytest.raises(StoreUriError):
        lock_status(uri)
    with pytest.raises(StoreUriError):
        compact(uri)
