"""What a store tells the senders of its domain in the Global Directory, and what a sender makes of it (R13)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_jms.store.errors import ResourceAllocationException
from spark_jms.store.kinds.opening import admission_of
from spark_jms.store.regions.directory import overload
from spark_jms.store.regions.directory.overload import PublishedOverload, SendAdmission
from spark_jms.testing.domain import wait_until

OPENER = "client@host:1:abc"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """With a region that a client has open."""
    for name in ("daemons", "regions"):
        (tmp_path / name).mkdir()
    (tmp_path / "regions" / "orders.000_client_meta.f").write_text(OPENER)
    return tmp_path


def test_sender_is_refused_while_the_store_is_above_yellow(directory: Path) -> None:
    """R13: by name, with the store's own reason; and no longer."""
    published, admission = PublishedOverload(directory, "orders", OPENER), SendAdmission(str(directory), "orders")
    admission.check()
    published.put("")
    admission.check()
    for reason in ("daemon memory is 81.00 % used", "daemon memory is 85.00 % used"):
        published.put(reason)
        with pytest.raises(ResourceAllocationException, match=f"store orders: {reason}"):
            admission.check()
    SendAdmission(str(directory), "others").check()
    published.put("")
    admission.check()
    assert os.listdir(directory / "daemons") == []


def test_store_that_has_ended_refuses_nothing(directory: Path) -> None:
    """R13: another client has its regions, or none."""
    PublishedOverload(directory, "orders", OPENER).put("full")
    admission = SendAdmission(str(directory), "orders")
    file = directory / "regions" / "orders.000_client_meta.f"
    file.write_text("client@host:2:def")
    admission.check()
    file.unlink()
    admission.check()
    (directory / "regions" / "orders.007_client_meta.f").write_text(OPENER)
    with pytest.raises(ResourceAllocationException):
        admission.check()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_damaged_or_absent_directory_refuses_nothing(directory: Path, content: bytes) -> None:
    """R13."""
    (directory / "daemons" / "orders.overload").write_bytes(content)
    SendAdmission(str(directory), "orders").check()
    SendAdmission(str(directory / "absent"), "orders").check()


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    over = threading.Event()
    read = Path.read_bytes

    def hang(path: Path) -> bytes:
        if path.suffix == ".overload":
            over.wait()
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", hang)
    monkeypatch.setattr(overload, "LOOK_S", 0.01)
    yield over
    over.set()


def test_hung_directory_holds_no_sender_up(directory: Path, hanging: threading.Event) -> None:
    """R13: it asks once, until that answers."""
    PublishedOverload(directory, "orders", OPENER).put("full")
    admission = SendAdmission(str(directory), "orders")
    before = threading.active_count()
    for _ in range(5):
        admission.check()
    assert threading.active_count() <= before + 1
    hanging.set()
    for thread in threading.enumerate():
        if thread.name == "store-overload":
            thread.join(10)

    def is_refused() -> bool:
        try:
            admission.check()
        except ResourceAllocationException:
            return True
        return False

    wait_until(is_refused, 10)  # a busy machine may not answer in time once more


def test_uri_names_the_store_whose_overload_counts(directory: Path) -> None:
    """R13: by default `jmsq`; other kinds of stores refuse nothing."""
    (directory / "regions" / "jmsq.000_client_meta.f").write_text(OPENER)
    for store in ("orders", "jmsq"):
        PublishedOverload(directory, store, OPENER).put("full")
    for uri in (
        f"replicated://{directory}?store=orders",
        f"replicated://{directory}",
        f"replicated://{directory}?x=1&store=jmsq",
    ):
        with pytest.raises(ResourceAllocationException):
            admission_of(uri)()
    for uri in (f"replicated://{directory}?store=others", str(directory), f"file://{directory}", "memory://x"):
        admission_of(uri)()
