"""Every file that one process alone may create, in an object store whose answers mislead (C5, C17).

The store says that the file exists, or fails, although the file is ours, or nobody's. Each user of `Storage.create` then does what
it does after a plain success, and after a file of another writer what its contract says."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.backup import MANIFEST, Manifest, restore
from spark_jms.admin.destinations import rename_destination
from spark_jms.claims.consumers.absent_servers import ProgressNotes, WithheldMessages
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.core.destinations.servers import LeaseTerm
from spark_jms.core.limits.quota import PublishedUsage, QuotaState
from spark_jms.errors import BackupError, DomainError, StaleCheckpointError, WriteOutcomeUnknownError
from spark_jms.log.destinations.domain import DOMAIN_FILE, Domain, Register, RegisterEntry
from spark_jms.log.destinations.servers import KnownTerm, ServerEntry, Servers, ServerTerms
from spark_jms.log.destinations.temporary import TemporaryEntry, TemporaryTables
from spark_jms.log.limits.quota_ledger import QuotaLedger
from spark_jms.log.limits.usage import UsageFiles
from spark_jms.log.tables import storage as log_storage
from spark_jms.log.tables.object_store import ObjectStorage
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.store import MemoryStore
from spark_jms.testing.inside import domain_of
from tests.contract.admin.test_backup import backed_up
from tests.harness.domains.misleading_store import UNCERTAIN, Answer, MisleadingStore

ENTRY, TERM, OTHER_TERM = RegisterEntry("orders.1", "acks.1"), LeaseTerm(1, 5), LeaseTerm(1, 7)
MINE = PublishedUsage("orders")
MANIFEST_OF = Manifest({"id": "mine"}, 1, 2, 3, (), ())
TEMPORARY = TemporaryEntry("t", "queue", "session", 5)


def left_out(storage: ObjectStorage) -> object:
    WithheldMessages(storage, "t", "q").add("3-x", [0])
    return WithheldMessages(storage, "t", "q").members("3-x")


def noted(storage: ObjectStorage) -> object:
    ProgressNotes(storage, "t", "q").note("3-x", behind={"a"})
    return ProgressNotes(storage, "t", "q").has("3-x")


def registered(storage: ObjectStorage) -> object:
    register = Register(storage)
    return register.add("orders", ENTRY), register.entry("orders") == ENTRY


def stopped(storage: ObjectStorage) -> object:
    Servers(storage).stop("a", 5)
    return Servers(storage).stopped()


def server(storage: ObjectStorage) -> object:
    Servers(storage).add("a", ServerEntry("jdbc:1"))
    return Servers(storage).entry("a").store


def term(storage: ObjectStorage) -> object:
    terms = ServerTerms(storage)
    return terms.begin("a", TERM), terms.newest()


def done(storage: ObjectStorage) -> object:
    terms = ServerTerms(storage)
    terms.begin("a", TERM)
    terms.note_done("a", TERM)
    return ServerTerms(storage).newest()


def published(storage: ObjectStorage) -> object:
    usages = UsageFiles(storage)
    return usages.publish("t", lambda: MINE), UsageFiles(storage).read("t") == MINE


def ledger(storage: ObjectStorage) -> object:
    found = QuotaLedger(storage, "small")
    made = found.append(found.read(), QuotaState().successor(), 5, "mine")
    return made is not None, QuotaLedger(storage, "small").read().what


def temporary(storage: ObjectStorage) -> object:
    tables = TemporaryTables(storage)
    tables.enter(TEMPORARY)
    return tables.entries()


def manifest(storage: ObjectStorage) -> object:
    MANIFEST_OF.write(storage)
    return Manifest.read(storage)


@dataclass(frozen=True)
class User:
    """`on_theirs`: what the call returns, or raises, when another writer has created the file with the bytes `theirs`."""

    at: str
    call: Callable[[ObjectStorage], object]
    on_ours: object
    theirs: bytes
    on_theirs: Any


OTHER_ENTRY = b'{"formatVersion": 1, "mark": "m", "previous": "", "atMs": 5, "what": "theirs", "state": %s}' % (
    json.dumps(QuotaState().successor().to_json()).encode()
)
OTHER_MANIFEST = json.dumps({"formatVersion": 1, **asdict(Manifest({"id": "other"}, 1, 2, 3, (), ()))}).encode()
USERS = {
    "left out": User("/3-x/0", left_out, {0}, b'{"v": 1, "by": "another"}', {0}),
    "noted progress": User("/q/3", noted, True, b'{"v": 1, "claim": "3-y"}', StaleCheckpointError),
    "register": User("/orders", registered, (True, True), b"", (False, False)),
    "stopped server": User("/a", stopped, {"a": 5}, b"3", {"a": 3}),
    "server": User("/a", server, "jdbc:1", b'{"store": "jdbc:2"}', DomainError),
    "term": User(
        "/0000000001",
        term,
        (True, {"a": KnownTerm(TERM, done=False)}),
        b'{"term": 1, "lapsedMs": 7}',
        (False, {"a": KnownTerm(OTHER_TERM, done=False)}),
    ),
    "term in all tables": User(".done", done, {"a": KnownTerm(TERM)}, b" ", {"a": KnownTerm(TERM)}),
    "usage": User("/000000000001", published, (True, True), b'{"destination": "other"}', (False, False)),
    "ledger of a quota": User("/000000000001", ledger, (True, "mine"), OTHER_ENTRY, (False, "theirs")),
    "temporary destination": User("/owners/t", temporary, [TEMPORARY], b"{}", []),
    "manifest of a backup": User(MANIFEST, manifest, MANIFEST_OF, OTHER_MANIFEST, BackupError),
}


@pytest.fixture
def storage() -> ObjectStorage:
    return ObjectStorage(f"memory://{uuid.uuid4().hex}")


@pytest.mark.parametrize("answer", UNCERTAIN)
@pytest.mark.parametrize("user", USERS)
def test_file_that_is_ours_in_the_end_counts_as_created(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, user: str, answer: Answer
) -> None:
    """C5, C17: the answer says that it exists, or is an error, and the file is ours or missing."""
    of = USERS[user]
    store = MisleadingStore(of.at, answer).install(monkeypatch)
    assert of.call(storage) == of.on_ours
    assert len(store.asked) == (1 if answer in (Answer.OURS, Answer.LOST) else 2)


@pytest.mark.parametrize("user", USERS)
def test_file_of_another_writer_is_left_to_it(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    """C5, C17: with other bytes than ours. Each user follows it, or raises its own error."""
    of = USERS[user]
    store = MisleadingStore(of.at, Answer.THEIRS, of.theirs).install(monkeypatch)
    if isinstance(of.on_theirs, type):
        with pytest.raises(of.on_theirs):
            of.call(storage)
    else:
        assert of.call(storage) == of.on_theirs
    assert len(store.asked) == 1
    assert storage.get(store.asked[0]) == of.theirs


@pytest.mark.parametrize("answer", [Answer.NOTHING, Answer.FAILED])
@pytest.mark.parametrize("user", USERS)
def test_file_that_never_comes_is_an_error_with_a_name(
    storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, user: str, answer: Answer
) -> None:
    """C5, C17: four requests, then the user learns that the file may be there or appear later."""
    store = MisleadingStore(USERS[user].at, answer, is_endless=True).install(monkeypatch)
    with pytest.raises(WriteOutcomeUnknownError, match=r"cannot write memory://.*appear later"):
        USERS[user].call(storage)
    assert len(store.asked) == 4
    assert storage.get(store.asked[0]) is None


# -- whole domains -----------------------------------------------------------------------------------------------------
@pytest.fixture
def root() -> Iterator[str]:
    name = uuid.uuid4().hex
    yield f"memory://{name}"
    MemoryStore.forget(name)


def applied(root: str) -> None:
    spark_jms.apply(root, {"store": root, "destinations": {"orders": {"kind": "queue"}}})


def sent(root: str, text: str, destination: str = "orders") -> list[str]:
    """The texts in the destination after one more was sent."""
    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer(destination).send(text=text)
        return [message.text for message in context.browser(destination)]


@pytest.mark.parametrize("answer", UNCERTAIN)
@pytest.mark.parametrize(
    "at",
    [DOMAIN_FILE, "orders/_delta_log/00000000000000000000.json", "_jmsq/destinations/orders"],
    ids=["domain", "table", "register"],
)
def test_first_apply_makes_a_domain_that_works(
    root: str, monkeypatch: pytest.MonkeyPatch, at: str, answer: Answer
) -> None:
    """C17, C18: the tables of a destination stay, whatever the store says of its entry."""
    store = MisleadingStore(at, answer).install(monkeypatch)
    applied(root)
    assert store.asked
    assert sent(root, "1") == ["1"]
    applied(root)
    assert sent(root, "2") == ["1", "2"]


@pytest.mark.parametrize("answer", UNCERTAIN)
def test_second_of_two_first_applies_deletes_no_table(
    root: str, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """C18: both enter the same bytes, for the same tables; each of them takes the entry for its own, or for the other's."""
    add = Register.add

    def both(self: Register, name: str, entry: RegisterEntry) -> bool:
        monkeypatch.setattr(Register, "add", add)
        applied(root)
        return add(self, name, entry)

    monkeypatch.setattr(Register, "add", both)
    MisleadingStore("_jmsq/destinations/orders", answer).install(monkeypatch)
    applied(root)
    assert sent(root, "1") == ["1"]


@pytest.mark.parametrize("answer", UNCERTAIN)
def test_renamed_destination_has_its_messages(root: str, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """C18."""
    applied(root)
    sent(root, "1")
    MisleadingStore("_jmsq/destinations/bills", answer).install(monkeypatch)
    domain = Domain(root)
    with opened_store(domain) as store:
        rename_destination(domain, store, "orders", "bills")
    assert sent(root, "2", "bills") == ["1", "2"]


@pytest.mark.parametrize("answer", UNCERTAIN)
def test_message_is_sent_once(root: str, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
    """C5, M1."""
    applied(root)
    store = MisleadingStore("orders/_delta_log/00000000000000000001.json", answer).install(monkeypatch)
    assert sent(root, "1") == ["1"]
    assert len(store.asked) == (1 if answer in (Answer.OURS, Answer.LOST) else 2)


@pytest.mark.parametrize("answer", Answer)
def test_restored_domain_is_the_one_of_the_backup(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer
) -> None:
    """C19: a domain that another process creates meanwhile fails the restore by name."""
    applied(root)
    sent(root, "1")
    backed_up(root, tmp_path)
    restored = uuid.uuid4().hex
    MisleadingStore(DOMAIN_FILE, answer, b"{}").install(monkeypatch)
    try:
        if answer is Answer.THEIRS:
            with pytest.raises(BackupError, match="another process has created a domain"):
                restore(str(tmp_path), f"memory://{restored}", f"memory://{restored}")
        else:
            restore(str(tmp_path), f"memory://{restored}", f"memory://{restored}")
            assert sent(f"memory://{restored}", "2") == ["1", "2"]
    finally:
        MemoryStore.forget(restored)


def test_waiting_request_of_unknown_outcome_is_withdrawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T1: the entry with the request was written, and the sender got an error: nobody else has to wait behind it."""
    root, quotas = str(tmp_path), {"small": {"messagesMaximum": 1}}
    destinations = {"orders": {"kind": "queue", "quota": "small"}}
    spark_jms.apply(root, {"store": f"memory://{tmp_path.name}", "quotas": quotas, "destinations": destinations})
    create = LocalStorage.create

    def unknown(self: LocalStorage, path: str, data: bytes, *, durable: bool = False) -> bool:
        made = create(self, path, data, durable=durable)
        if b" waits" in data:
            raise WriteOutcomeUnknownError(f"cannot write {path}")
        return made

    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="1")
        with monkeypatch.context() as patch:
            patch.setattr(LocalStorage, "create", unknown)
            with pytest.raises(DomainError, match=r"no room can be reserved.*nothing was sent"):
                context.producer("orders", send_timeout=5).send(text="2")
        found = domain_of(context).quotas
        assert not found.now(found.ledger("small", found.limit("small"), "orders")).state.waiting
    MemoryStore.forget(tmp_path.name)


# -- directories -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("error", [FileExistsError, TimeoutError])
def test_directory_on_nfs_knows_its_own_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[OSError], durable: bool
) -> None:
    """C5: the server has carried the request out, its answer was lost, and the repeated request is refused."""
    link = os.link

    def repeated(source: Any, target: Any, **options: Any) -> None:
        link(source, target, **options)
        raise error(target)

    monkeypatch.setattr(log_storage, "allows_unnamed", lambda folder: False)
    storage = LocalStorage(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", repeated)
        assert storage.create("a/1", b"ours", durable=durable)
    assert not storage.create("a/1", b"theirs", durable=durable)
    assert [(info.path, storage.get(info.path)) for info in storage.list("")] == [("a/1", b"ours")]


def test_file_whose_folder_cannot_be_synced_may_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: it is there, and a loss of power may undo it: neither a success nor a failure."""
    storage, sync = LocalStorage(tmp_path), log_storage.sync_path

    def failing(path: Path) -> None:
        if path.is_dir():
            raise OSError("input/output error")
        sync(path)

    monkeypatch.setattr(log_storage, "sync_path", failing)
    with pytest.raises(WriteOutcomeUnknownError, match="a power loss may undo it"):
        storage.create("a/1", b"ours", durable=True)


@pytest.mark.parametrize("kind", ["directory", "object store"])
def test_plain_answer_costs_no_read(
    tmp_path: Path, storage: ObjectStorage, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """C11: a success is certain everywhere, and "it exists" in a directory."""
    made: Any = LocalStorage(tmp_path) if kind == "directory" else storage
    reads: list[str] = []
    get = type(made).get
    monkeypatch.setattr(type(made), "get", lambda self, path: reads.append(path) or get(self, path))
    assert made.create("a/1", b"one")
    assert not reads
    assert not made.create("a/1", b"two")
    assert len(reads) == (0 if kind == "directory" else 1)
