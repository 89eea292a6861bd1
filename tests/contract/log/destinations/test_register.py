"""The register says where a destination's tables lie (C3, C18)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import spark_jms
from spark_jms.admin.destinations import drop_destination
from spark_jms.admin.domain_sample import DESTINATIONS, take
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.cli.__main__ import cli
from spark_jms.client import connect
from spark_jms.core.destinations.destination import Destination
from spark_jms.core.records.stored_form import DOMAIN_RECORD
from spark_jms.errors import DomainError, InvalidDestinationError, JmsqError
from spark_jms.log.destinations.declarations import DeclarationChange, apply_destinations
from spark_jms.log.destinations.domain import ACKNOWLEDGEMENTS, REGISTER, Domain, RegisterEntry, create_domain
from spark_jms.store import Delete, ForeignOwnerError, StoreAbsentError, open_store
from spark_jms.testing import memory_domain


def apply(root: str, name: str = "orders") -> list[DeclarationChange]:
    return apply_destinations(Domain(root), [Destination(name, "queue")], lambda *_: True)


def send_and_receive(root: str, text: str) -> None:
    with connect(root) as context:
        context.producer("orders").send(text=text)
        with context.consumer("orders") as consumer:
            message = consumer.receive(timeout=10)
            assert message is not None
            assert message.text == text
            message.acknowledge()


def test_new_destination_has_its_name_as_path() -> None:
    """C3: people find the table under the name."""
    with memory_domain(orders="queue") as root:
        entry = Domain(root).register.entry("orders")
        assert entry == RegisterEntry("orders", f"{ACKNOWLEDGEMENTS}/orders") == RegisterEntry.by_name("orders")
        assert Path(root, "orders", "_delta_log").is_dir()


def test_empty_entry_means_the_name() -> None:
    """C18: as earlier versions wrote it."""
    with memory_domain(orders="queue") as root:
        Path(root, REGISTER, "orders").write_bytes(b"")
        assert Domain(root).register.entry("orders") == RegisterEntry.by_name("orders")
        send_and_receive(root, "a")


def test_register_moves_a_table() -> None:
    """C18: the entry names the paths of both tables; nothing else refers to them."""
    with memory_domain(orders="queue") as root:
        send_and_receive(root, "a")
        shutil.move(f"{root}/orders", f"{root}/elsewhere")
        shutil.move(f"{root}/{ACKNOWLEDGEMENTS}/orders", f"{root}/acks")
        Path(root, REGISTER, "orders").unlink()
        assert Domain(root).register.add("orders", RegisterEntry("elsewhere", "acks"))
        assert not Domain(root).register.add("orders", RegisterEntry.by_name("orders"))
        assert Domain(root).log("orders").refresh().last_sequence(0) == 1
        assert Domain(root).acknowledgements("orders").storage.uri == f"{root}/acks"
        send_and_receive(root, "b")
        assert apply(root)[0].what == "unchanged"
        assert not Path(root, "orders").exists()


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"path": "../x", "acknowledgements": "a"}', b'{"path": 1}'])
def test_damaged_entry_is_named(data: bytes) -> None:
    """C18: with its path, and what to write into it."""
    with memory_domain(orders="queue") as root:
        Path(root, REGISTER, "orders").write_bytes(data)
        with pytest.raises(DomainError, match=r"_jmsq/destinations/orders is damaged .*write into it"):
            Domain(root).log("orders")


def test_relative_root_without_a_domain_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C3: by the directory in which it was looked for, which need not be the user's: processes of Spark have their own."""
    monkeypatch.chdir(tmp_path)
    for root, relative in (("messages", True), (str(tmp_path / "messages"), False), (f"{tmp_path}/messages/", False)):
        with pytest.raises(
            DomainError, match=f"^{tmp_path}/messages is not a spark-jms domain: create it with"
        ) as raised:
            Domain(root)
        said = "or give an absolute root: messages is relative to the directory of this process"
        assert str(raised.value).endswith(said) == relative


def test_unknown_destination_is_named() -> None:
    """C3: by both tables."""
    with memory_domain(orders="queue") as root:
        for get in (Domain(root).log, Domain(root).acknowledgements):
            with pytest.raises(InvalidDestinationError, match="there are: orders"):
                get("other")


def test_occupied_path_is_left_alone() -> None:
    """C18: a destination whose name's path belongs to another one, or to nobody we know, gets a path of its own."""
    with memory_domain(orders="queue") as root:
        domain = Domain(root)
        domain.log("orders").refresh()
        moved = domain.register.entry("orders")
        assert moved is not None
        domain.storage.delete(f"{REGISTER}/orders")
        domain.register.add("old-orders", moved)
        Path(root, "prices").mkdir()
        Path(root, "prices", "notes.txt").write_text("mine")
        assert apply(root)[0].what == apply(root, "prices")[0].what == "created"
        for name in ("orders", "prices"):
            entry = domain.register.entry(name)
            assert entry is not None
            assert entry.path.startswith(f"{name}.")
        send_and_receive(root, "a")
        assert Domain(root).log("old-orders").refresh().last_sequence(0) == 0
        assert Path(root, "prices", "notes.txt").read_text() == "mine"
        assert len(domain.register.paths()) == 9


def test_acknowledgements_of_a_deleted_destination_are_left_alone() -> None:
    """C14, C18: its table and register entry were deleted by hand; the new destination has a history of its own."""
    with memory_domain(orders="queue") as root:
        send_and_receive(root, "a")
        shutil.rmtree(f"{root}/orders")
        Path(root, REGISTER, "orders").unlink()
        assert apply(root)[0].what == "created"
        send_and_receive(root, "b")
        entry = Domain(root).register.entry("orders")
        assert entry is not None
        assert entry.path == "orders"
        assert entry.acknowledgements.startswith(f"{ACKNOWLEDGEMENTS}/orders.")
        (new,) = Domain(root).acknowledgements("orders").refresh().files.values()
        assert new.rows == 1
        assert (Path(root, ACKNOWLEDGEMENTS, "orders") / "_delta_log").exists()


def test_interrupted_creation_continues_with_its_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C3, C18: apply was killed before it had written the register entry; the next one leaves no table behind."""
    root = str(tmp_path / "domain")
    domain = create_domain(root)

    def killed(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(domain.register), "add", killed)
        with pytest.raises(KeyboardInterrupt):
            apply(root)
    first = domain.storage.get("orders/_delta_log/00000000000000000000.json")
    assert apply(root)[0].what == "created"
    assert domain.register.entry("orders") == RegisterEntry.by_name("orders")
    assert domain.storage.get("orders/_delta_log/00000000000000000000.json") == first


def test_creation_that_lost_a_race_leaves_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """C3, C18: two applies at once chose different paths; one entry counts, and the other tables are deleted."""
    with memory_domain() as root:
        domain = Domain(root)
        domain.storage.put("orders/notes.txt", b"mine")
        winner = RegisterEntry("orders.first", f"{ACKNOWLEDGEMENTS}/orders.first")
        add = type(domain.register).add
        monkeypatch.setattr(
            type(domain.register), "add", lambda self, name, entry: add(self, name, winner) and add(self, name, entry)
        )
        apply(root)
        assert domain.register.entry("orders") == winner
        assert {path.name for path in Path(root).iterdir()} == {"_jmsq", "orders"}
        assert list(Path(root, ACKNOWLEDGEMENTS).iterdir()) == []


def test_missing_register_is_named() -> None:
    """C18, M5: the domain does not look empty: each read names the folder, and an apply enters the tables again."""
    with memory_domain("file", orders="queue") as root:
        domain = Domain(root)
        with opened_store(domain) as store:
            send_and_receive(root, "a")
            shutil.rmtree(f"{root}/{REGISTER}")
            lost = r"_jmsq/destinations names no destination, but there are tables .*run `jmsq apply"
            with pytest.raises(DomainError, match=lost):
                domain.destinations()
            with pytest.raises(DomainError, match=lost):
                domain.log("orders")
            assert f"DomainError: {root}/_jmsq/destinations names no" in take(domain, store).problems[DESTINATIONS]
            assert "names no destination" in CliRunner().invoke(cli, ["list", "--root", root]).stderr
            apply(root)
            assert domain.destinations() == ["orders"]
            send_and_receive(root, "b")


def test_missing_root_is_named() -> None:
    """C18, M5: as of a root on a file system that is not mounted now."""
    with memory_domain("file", orders="queue") as root:
        domain = Domain(root)
        Path(root).rename(f"{root}-away")
        try:
            for call in (domain.destinations, lambda: domain.log("orders")):
                with pytest.raises(DomainError, match="cannot be reached: its domain file is missing"):
                    call()
        finally:
            Path(f"{root}-away").rename(root)
        assert domain.destinations() == ["orders"]


def test_root_that_goes_away_under_a_client_is_named_and_continues() -> None:
    """C18, C11: no call says that a destination should be created, which would make a new, empty domain."""
    with (
        memory_domain("file", orders="queue", other="queue") as root,
        connect(root, housekeeping=False) as context,
        context.transacted_session() as session,
    ):
        producer, consumer = context.producer("orders"), context.consumer("orders", acknowledge="individual")
        producer.send(text="a")
        for name in ("orders", "other"):
            session.producer(name).send(text="x")
        Path(root).rename(f"{root}-away")
        try:
            calls: list[Callable[[], object]] = [
                lambda: producer.send(text="x"),
                lambda: producer.send_many([{"text": "x"}]),
                lambda: consumer.receive(1),
                lambda: context.producer("other"),
                lambda: list(context.browser("orders")),
                session.commit,
                context.create_temporary_queue,
            ]
            for call in calls:
                with pytest.raises((JmsqError, StoreAbsentError), match="Bring the directory or its mount back"):
                    call()
            assert not Path(root).exists()
        finally:
            Path(f"{root}-away").rename(root)
        producer.send(text="b")
        texts = [message.text for message in context.browser("orders")]
        assert texts == ["a", "b"]


@pytest.mark.parametrize("store", ["replicated:///nowhere", "jdbc:sqlite:////proc/nowhere/store.db"])
def test_domain_with_a_store_that_cannot_work_is_refused_and_mended(tmp_path: Path, store: str) -> None:
    """C18: apply fails by name, makes no destination, and takes another store until there is one."""
    root, module = str(tmp_path / "root"), {"destinations": {"orders": {"kind": "queue"}}}
    for declared in ({"store": store, **module}, module):
        with pytest.raises(DomainError, match="name another one with `store:` in the module file"):
            spark_jms.apply(root, declared)
        assert Domain(root).destinations() == []
    spark_jms.apply(root, {"store": "file", **module})
    send_and_receive(root, "a")
    with pytest.raises(DomainError, match="cannot be changed"):
        spark_jms.apply(root, {"store": store, **module})


def test_domain_without_destinations_is_empty() -> None:
    """C18: before the first apply, and after the last drop."""
    with memory_domain("file") as root:
        domain = Domain(root)
        assert domain.destinations() == []
        apply(root)
        with opened_store(domain) as store:
            drop_destination(domain, store, "orders")
        assert domain.destinations() == []


@pytest.fixture
def shared(tmp_path: Path) -> dict[str, Any]:
    """The declaration of two domains with one store, of which `first` is applied."""
    declared = {"store": str(tmp_path / "store"), "destinations": {"orders": {"kind": "queue"}}}
    spark_jms.apply(str(tmp_path / "first"), declared)
    return declared


def test_store_of_another_domain_is_refused(tmp_path: Path, shared: dict[str, Any]) -> None:
    """C18, S9: each would complete the transactions of the other, and take their destinations for dropped. The first has not consumed
    yet; it may drop its destinations and declare others."""
    second, why = str(tmp_path / "second"), r"ForeignOwnerError: .* belongs to domain"
    for _ in range(2):
        with pytest.raises(DomainError, match=why):
            spark_jms.apply(second, shared)
    with pytest.raises(ForeignOwnerError):  # its file names the store
        open_stores(Domain(second))
    spark_jms.apply(second, {**shared, "store": "file"})
    first = Domain(str(tmp_path / "first"))
    with opened_store(first) as opened:
        drop_destination(first, opened, "orders", force=True)
    assert not first.register.names()
    spark_jms.apply(first.root, shared)


def test_store_that_names_no_domain_is_refused_for_its_positions(tmp_path: Path, shared: dict[str, Any]) -> None:
    """C18, S9: it was made before stores named their domain. That one opens it as before."""
    first = str(tmp_path / "first")
    with connect(first) as ctx:
        ctx.producer("orders").send(text="a")
        assert ctx.consumer("orders").receive(5) is not None
    with open_store(shared["store"]) as store, store.connect("test") as session:
        session.open(DOMAIN_RECORD).commit([Delete("id")])
    with pytest.raises(DomainError, match=r"belongs to another domain, of which it has positions \(members/"):
        spark_jms.apply(str(tmp_path / "second"), shared)
    spark_jms.apply(first, shared)
