"""A disk without room: calls fail by name, nothing is sent, and everything continues when there is room (C17, S9)."""

from __future__ import annotations

import errno
import json
import os
import pickle
import sys
from pathlib import Path

import pytest

import spark_jms
from spark_jms.errors import JmsqError, NoRoomError, StorageFullError
from spark_jms.log.tables import storage as log_storage
from spark_jms.log.tables.storage import LocalStorage
from spark_jms.store import StoreFullError
from spark_jms.testing import memory_domain
from tests.harness.processes import forked

# The lack of room is a limit on the size of files in a process of its own, so no disk is filled.
_CHILD = """
import json, resource, signal, sys
import pyarrow as pa
from spark_jms import connect
from spark_jms.client import Completion
from spark_jms.errors import TransactionRolledBackException
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
kept = resource.getrlimit(resource.RLIMIT_FSIZE)
found = []
root = sys.argv[1]
def work(name, call):
    try:
        call()
    except Exception as error:
        error = error.__cause__ if isinstance(error, TransactionRolledBackException) else error
        found.append([name, [c.__name__ for c in type(error).__mro__], str(error)])
def acknowledged(consumer):
    message = consumer.receive(timeout=5)
    if message is not None:
        message.acknowledge()
def transaction(session):
    session.producer("work").send(text="never")
    session.producer("audit").send(text="never")
    session.commit()
def task():
    log = Domain(root).log("work")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    writer.write(pa.RecordBatch.from_pydict({"text": ["never"] * 1000}))
    writer.close()
with connect(root, housekeeping=False) as context, context.transacted_session() as session:
    producer, consumer = context.producer("work"), context.consumer("work", acknowledge="individual")
    for number in range(4):
        producer.send(text=f"before {number}")
    acknowledged(consumer)
    for limit in (1500, 200, 0):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, kept[1]))
        work("send", lambda: producer.send(text="never"))
        work("send_many", lambda: producer.send_many({"text": "never" * 100} for _ in range(1000)))
        work("acknowledge", lambda: acknowledged(consumer))
        work("transaction", lambda: transaction(session))
        work("task", task)
        work("temporary", context.create_temporary_queue)
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    producer.send(text="after")
    session.producer("audit").send(text="after")
    session.commit()
print(json.dumps(found))
"""


@pytest.mark.parametrize("durability", ["process", "power"])
def test_calls_without_room_are_named_and_continue_with_room(durability: str) -> None:
    """C17, C11: sends, acknowledgements, transactions, tasks of a query; the error names destination and file, and no file is left."""
    work = {"kind": "queue", "durability": durability}
    with memory_domain("file", work=work, audit={"kind": "queue"}) as root:
        done = forked.run([sys.executable, "-c", _CHILD, root], timeout=120, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert {name for name, _, _ in found} >= {"send", "send_many", "transaction", "task"}
        for name, kinds, text in found:
            assert "NoRoomError" in kinds, (name, kinds[0], text)
            assert "Free some space" in text
            if name in ("send", "send_many", "task"):
                assert "StorageFullError" in kinds
                assert "destination work" in text
                assert root in text
        assert [file for file in Path(root, "work").rglob(".*") if file.is_file()] == []
        with spark_jms.connect(root, housekeeping=False) as context:
            texts = [m.text for m in context.browser("work", include_finished=True)]
            assert texts == [f"before {n}" for n in range(4)] + ["after"]
            assert [m.text for m in context.browser("audit")] == ["after"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("has_unnamed", [True, False])
def test_storage_names_what_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, has_unnamed: bool
) -> None:
    """C17: in every way to write a file; nothing is left of it. Other errors stay what they are."""
    storage = LocalStorage(tmp_path)
    monkeypatch.setattr(log_storage, "allows_unnamed", lambda folder: has_unnamed)
    storage.put("there", b"x")
    for raised in (code, errno.EIO):

        def failing(*_: object, raised: int = raised, **__: object) -> None:
            raise OSError(raised, os.strerror(raised))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "write_bytes", failing)
            patch.setattr(log_storage, "_create_unnamed", failing)
            patch.setattr(log_storage, "sync_path", failing)
            patch.setattr(log_storage.pa, "OSFile", failing)
            calls = (
                lambda: storage.create("a", b"x"),
                lambda: storage.create("a", b"x", durable=True),
                lambda: storage.put("there", b"y"),
                lambda: storage.open_output("a"),
                lambda: storage.sync(["there"]),
            )
            for call in calls:
                with pytest.raises(OSError) as caught:
                    call()
                assert isinstance(caught.value, NoRoomError) is (raised == code)
                assert str(tmp_path) in str(caught.value) or raised != code
    assert os.listdir(tmp_path) == ["there"]
    assert storage.get("there") == b"x"


def test_stores_and_files_without_room_are_one_family() -> None:
    """C17, S9: both are JmsqErrors, and pickle."""
    for error in (StoreFullError("journal"), StorageFullError("file"), StoreFullError(), StorageFullError()):
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, NoRoomError)
        assert isinstance(again, JmsqError)
        assert str(again) == str(error)
        assert str(error).count("Free some space") <= 1
