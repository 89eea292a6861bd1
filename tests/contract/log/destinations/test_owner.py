"""A store names the domain that it serves (C18, C19, S3, S9)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin.backup import back_up, restore
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.cli.__main__ import cli
from spark_jms.core.records.stored_form import DOMAIN_RECORD
from spark_jms.errors import DomainError
from spark_jms.log.destinations.domain import DOMAIN_FILE, Domain
from spark_jms.log.destinations.owner import take_over
from spark_jms.store import (
    Delete,
    ForeignOwnerError,
    Put,
    RecordCorruptError,
    Store,
    StoreBusyError,
    StoreFullError,
    StoreInUseError,
    open_store,
)
from spark_jms.store.file.store import FileStore

QUEUE = {"destinations": {"orders": {"kind": "queue"}}}


def made(root: Path, store: str, **more: Any) -> Domain:
    spark_jms.apply(str(root), {"store": store, **QUEUE, **more})
    return Domain(str(root))


def use(domain: Domain, text: str = "a") -> None:
    """Send and receive one message, so that the store has positions."""
    with spark_jms.connect(domain.root) as context:
        context.producer("orders").send(text=text)
        message = context.consumer("orders").receive(timeout=10)
        assert message is not None
        assert message.text == text
        message.acknowledge()


def names_store(domain: Domain, store: str) -> Domain:
    """The domain's file names this store, as if an earlier release had let it."""
    file = Path(domain.root, DOMAIN_FILE)
    file.write_text(json.dumps({**json.loads(file.read_text()), "store": store}))
    return Domain(domain.root)


def note(uri: str) -> dict[str, bytes]:
    with open_store(uri, create=False) as store:
        return store.peek(DOMAIN_RECORD)


def remove_note(uri: str) -> None:
    """As earlier releases left it."""
    with open_store(uri, create=False) as store, store.connect("test") as session:
        handle = session.open(DOMAIN_RECORD)
        handle.commit([Delete(key) for key in handle.objects()])


def kinds_of(tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, Callable[[], str]]:
    return {
        "file": lambda: str(tmp_path / "store"),
        "sqlite": lambda: f"jdbc:sqlite:///{tmp_path}/store.db?engine=both",
        "postgresql": lambda: request.getfixturevalue("postgresql").uri(engine="both"),
        "replicated": lambda: request.getfixturevalue("replicated").uri(),
    }


@pytest.fixture(params=["file", "sqlite", "postgresql", "replicated"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URI of a new store of each kind that outlives its process."""
    return kinds_of(tmp_path, request)[request.param]()


def test_opening_refuses_the_store_of_another_domain(tmp_path: Path, store: str) -> None:
    """S3, S9, R17: whichever process has it open, and whoever opens it; nothing is changed, and the first domain works."""
    first = made(tmp_path / "first", store)
    use(first)
    second = names_store(made(tmp_path / "second", "file"), store)
    before = note(first.store_uri)
    for opened in (lambda: open_stores(second), lambda: spark_jms.connect(second.root).consumer("orders")):
        with pytest.raises(ForeignOwnerError, match=f"belongs to domain {first.id}, not to domain {second.id}"):
            opened()
    with (
        spark_jms.connect(first.root),
        pytest.raises(ForeignOwnerError),
    ):  # as a client of an engine that serves the first
        open_stores(second)
    assert note(first.store_uri) == before == {"id": first.id.encode()}
    use(first, "b")


def test_store_of_an_earlier_release_gets_its_note_at_the_first_opening(tmp_path: Path, store: str) -> None:
    """C18, S3: with the positions of this domain in it, and without any."""
    domain = made(tmp_path / "root", store)
    for used in (False, True):
        if used:
            use(domain)
        remove_note(domain.store_uri)
        open_stores(domain).close()
        assert note(domain.store_uri) == {"id": domain.id.encode()}
    use(domain, "b")


def test_store_with_positions_of_another_domain_alone_is_not_taken(tmp_path: Path) -> None:
    """C18, S9: of two domains of earlier releases that share a store, the one that has no positions there is refused."""
    store = str(tmp_path / "store")
    first, second = made(tmp_path / "first", store), made(tmp_path / "second", "file")
    use(first)
    remove_note(store)
    second = names_store(second, store)
    with pytest.raises(ForeignOwnerError, match="another domain, of which it has positions"):
        open_stores(second)
    assert note(store) == {}
    use(first, "b")
    assert note(store) == {"id": first.id.encode()}


def test_stores_of_servers_name_their_server(tmp_path: Path) -> None:
    """S9, D1: two folders that changed places are refused at both servers, by name; a note is written for those of an earlier
    release too."""
    servers = {name: {"store": str(tmp_path / name)} for name in "ab"}
    domain = made(tmp_path / "root", "file", servers=servers)
    assert note(str(tmp_path / "a")) == {"id": f"{domain.id}-a".encode()}
    remove_note(str(tmp_path / "a"))
    with open_stores(domain) as stores:
        assert stores.peek(f"@a/{DOMAIN_RECORD}") == {"id": f"{domain.id}-a".encode()}
    for old, new in (("a", "x"), ("b", "a"), ("x", "b")):
        (tmp_path / old).rename(tmp_path / new)
    with open_stores(domain) as stores:
        for one, other in ("ab", "ba"):
            with pytest.raises(ForeignOwnerError, match=f"belongs to server {other} of domain {domain.id}"):
                stores.peek(f"@{one}/{DOMAIN_RECORD}")


def test_new_server_with_the_store_of_another_one_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9, D1: by its URI where that names the same place, else by the note in it."""
    (tmp_path / "alias").symlink_to(tmp_path)
    domain = made(tmp_path / "root", "file", servers={"a": {"store": f"jdbc:sqlite:///{tmp_path}/a.db?engine=x"}})
    same = {"b": {"store": f"sqlite:///{tmp_path}/alias/a.db?retry_limit_s=1000"}}
    with pytest.raises(DomainError, match="server b has the store of server a"):
        spark_jms.apply(domain.root, {**QUEUE, "servers": same})
    alias = {"b": {"store": f"jdbc:sqlite:///{tmp_path}/alias/a.db?engine=x"}}
    monkeypatch.setattr("spark_jms.log.destinations.domain.same_store", lambda one, other: False)  # an alias of a host
    with pytest.raises(ForeignOwnerError, match=f"belongs to server a of domain {domain.id}"):
        spark_jms.apply(domain.root, {**QUEUE, "servers": alias})
    assert domain.servers.names() == ["a"]


def test_restored_copy_and_original_do_not_share_a_store(tmp_path: Path) -> None:
    """C19, S9: they have one id, and tables with one id. The original is refused by name, and cannot take the store over: the copy's
    positions would hide its messages."""
    store = str(tmp_path / "store")
    original = made(tmp_path / "original", store)
    use(original)
    with opened_store(original) as opened:
        back_up(original, opened, str(tmp_path / "backup"))
    shutil.rmtree(store)
    restore(str(tmp_path / "backup"), str(tmp_path / "copy"))
    copy = Domain(str(tmp_path / "copy"))
    assert copy.id == original.id
    use(copy, "b")
    with pytest.raises(ForeignOwnerError, match=f"belongs to domain {copy.id}, restored copy .*, not to domain"):
        open_stores(original)
    for dry_run in (True, False):
        with pytest.raises(StoreInUseError, match=r"has the positions of domain .*, restored copy"):
            take_over(original.owner("home"), dry_run=dry_run)
    use(copy, "c")


def test_backup_does_not_say_which_copy_it_is_of(tmp_path: Path) -> None:
    """C19: so that an earlier release can restore it, and a copy of a copy is a new one."""
    domain = made(tmp_path / "root", "file")
    roots = [domain.root]
    for number in range(2):
        last = Domain(roots[-1])
        with opened_store(last) as opened:
            back_up(last, opened, str(tmp_path / f"backup{number}"))
        assert '"copy"' not in (tmp_path / f"backup{number}" / "records.jsonl").read_text()
        roots.append(str(tmp_path / f"copy{number}"))
        restore(str(tmp_path / f"backup{number}"), roots[-1])
    copies = [note(Domain(root).store_uri)["copy"] for root in roots[1:]]
    assert len(set(copies)) == 2


def test_store_that_cannot_be_written_opens_without_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """C18: a full disk, or a user who may only read: the next opening writes the note."""
    domain = made(tmp_path / "root", "file")
    remove_note(domain.store_uri)

    def full(self: Store, label: str = "") -> Any:
        raise StoreFullError("no space left")

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "connect", full)
        open_stores(domain).close()
    assert "does not name its domain yet" in caplog.text
    assert note(domain.store_uri) == {}
    open_stores(domain).close()
    assert note(domain.store_uri) == {"id": domain.id.encode()}


def test_damaged_note_leaves_the_other_record_sets_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S9: the log names it; every other record set works."""
    domain = made(tmp_path / "root", "file")
    real = FileStore.peek

    def peek(self: Store, name: str) -> dict[str, bytes]:
        if name == DOMAIN_RECORD:
            raise RecordCorruptError("current.log", 1, "the checksum is wrong", name)
        return real(self, name)  # type: ignore[arg-type]

    monkeypatch.setattr(FileStore, "peek", peek)
    use(domain)
    assert "the checksum is wrong" in caplog.text


def test_two_processes_that_write_the_note_at_once_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18: the second one finds the note of the first, between its look and its write."""
    store = str(tmp_path / "store")
    first, second = made(tmp_path / "first", store), made(tmp_path / "second", "file")
    remove_note(store)
    second = names_store(second, store)
    real = FileStore.names

    def overtaken(self: FileStore, prefix: str = "") -> list[str]:
        """The look for positions of another domain."""
        with open_store(store) as opened, opened.connect("the other") as session:
            session.open(DOMAIN_RECORD).commit([Put("id", first.id.encode())])
        return real(self, prefix)

    with monkeypatch.context() as patched:
        patched.setattr(FileStore, "names", overtaken)
        with pytest.raises(ForeignOwnerError, match=f"belongs to domain {first.id}"):
            open_stores(second)
    assert note(store) == {"id": first.id.encode()}


def test_command_takes_over_a_store(tmp_path: Path) -> None:
    """S9, C14: the domain's own one, and by its URI that of a server that is not declared yet."""
    first, second = made(tmp_path / "first", str(tmp_path / "store")), made(tmp_path / "second", "file")
    second = names_store(second, str(tmp_path / "store"))

    def jmsq(*words: str) -> str:
        done = CliRunner().invoke(cli, ["store", "own", *words, "--root", second.root])
        assert done.exit_code == 0, done.output
        return done.output

    with open_stores(first) as held, held.connect("a consumer"), pytest.raises(StoreInUseError, match="a consumer"):
        take_over(second.owner("home"))
    before = {"store": str(tmp_path / "store"), "before": f"domain {first.id}", "dry_run": True}
    assert json.loads(jmsq("--dry-run", "--json")) == before
    assert f"would be the store of {second.root}; before: domain {first.id}" in jmsq("--dry-run")
    assert note(str(tmp_path / "store")) == {"id": first.id.encode()}
    assert f"is the store of {second.root}; before: domain {first.id}" in jmsq()
    assert "as before" in jmsq()
    use(second)
    with pytest.raises(ForeignOwnerError):
        open_stores(first)
    on_server = {**QUEUE, "servers": {"a": {"store": str(tmp_path / "a")}}}
    spark_jms.apply(first.root, on_server)
    with pytest.raises(ForeignOwnerError, match=f"belongs to server a of domain {first.id}"):
        spark_jms.apply(second.root, on_server)
    assert "before: server a of domain" in jmsq(str(tmp_path / "a"), "--server", "a")
    spark_jms.apply(second.root, on_server)


def test_open_store_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9: a second context of a process opens, and sends, while the store does not answer."""
    domain = made(tmp_path / "root", str(tmp_path / "store"))
    with spark_jms.connect(domain.root), monkeypatch.context() as patched:

        def away(self: FileStore, name: str) -> dict[str, bytes]:
            raise StoreBusyError("away")

        patched.setattr(FileStore, "peek", away)
        with spark_jms.connect(domain.root, housekeeping=False) as context:
            assert context.producer("orders").send(text="a").sequence == 1
    monkeypatch.setattr(FileStore, "peek", away)
    with pytest.raises(StoreBusyError):
        open_stores(domain)
