"""An old copy of a checkpoint, when its query has acknowledged later batches while a server was away (C5, C9)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_jms
from spark_jms.admin.destinations import drop_destination
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.absent_servers import QUERY_PROGRESS
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.servers.stores import open_stores
from spark_jms.core.records.batch import Batch, Limits, claim_number
from spark_jms.errors import FormatVersionError, OffsetError, StaleCheckpointError
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.servers import Away, applied, next_batch, queue_on

Instance = Callable[[], Subscriber]


@pytest.fixture
def root(tmp_path: Path) -> str:
    return applied(tmp_path, queue_on("a", "b"))


@pytest.fixture
def instance(root: str) -> Iterator[Instance]:
    """Makes instances of one query; the one before has ended."""
    domain = Domain(root)
    opened: list[Subscriber] = []
    with open_stores(domain) as store:

        def made() -> Subscriber:
            for old in opened:
                old.close()
            opened.append(Subscriber(domain, store, "orders", "-", "q", ConsumerSettings()))
            return opened[-1]

        yield made
        for one in opened:
            one.close()


def send(root: str, *servers: str) -> None:
    with spark_jms.connect(root, housekeeping=False) as context:
        for server in servers:
            with context.producer(f"{server}@orders") as producer:
                producer.send(text=server)


def notes(root: str) -> list[int]:
    return sorted(int(info.path.rsplit("/", 1)[1]) for info in Domain(root).storage.list(QUERY_PROGRESS))


def first_batch(root: str, query: Subscriber) -> Batch:
    send(root, "a", "b")
    return next_batch(query, Batch("q", table=query.table_id))


def while_a_is_away(root: str, query: Subscriber, start: Batch, batches: int = 2) -> Batch:
    """The last of so many batches of b behind `start`, which both servers have acknowledged. All but the last are acknowledged."""
    assert query.next_batch(start, Limits()) is None
    with Away(root, "a"):
        for _ in range(batches):
            send(root, "b")
            start = next_batch(query, start)
            assert start.delivered.keys() == {1}
    return start


def test_old_checkpoint_is_refused_by_a_server_that_was_away(root: str, instance: Instance) -> None:
    """C5, C9: b, which has the newest progress, is away at the restart. The root has it, so the messages of a do not get batch
    numbers that the sink has seen."""
    query = instance()
    copied = first_batch(root, query)
    newest = while_a_is_away(root, query, copied)
    assert notes(root) == [claim_number(newest.claim) - 1]
    restarted = instance()
    send(root, "a")
    with Away(root, "b"):
        with pytest.raises(StaleCheckpointError, match=f"ends with claim {copied.claim}"):
            restarted.next_batch(copied, Limits())
        with pytest.raises(StaleCheckpointError):  # a second attempt of this instance too
            restarted.next_batch(copied, Limits())
        with pytest.raises(StaleCheckpointError, match=r"\(none\)"):
            instance().next_batch(Batch("q", table=query.table_id), Limits())


def test_newest_checkpoint_continues_with_a_server_that_was_away(root: str, instance: Instance) -> None:
    """C5: the note refuses nothing but older copies."""
    query = instance()
    newest = while_a_is_away(root, query, first_batch(root, query))
    restarted = instance()
    send(root, "a")
    with Away(root, "b"):
        assert next_batch(restarted, newest).delivered.keys() == {0}


def test_nothing_is_noted_while_all_servers_answer(root: str, instance: Instance) -> None:
    """C5: and the note is deleted once all servers have written the newest claim."""
    query = instance()
    start = first_batch(root, query)
    send(root, "a", "b")
    start = next_batch(query, start)
    assert notes(root) == []
    start = while_a_is_away(root, query, start)
    assert notes(root)
    for _ in range(2):
        send(root, "a")
        start = next_batch(query, start)
    assert notes(root) == []


def test_note_stays_while_a_server_catches_up_with_an_earlier_batch(root: str, instance: Instance) -> None:
    """C5, D8: a comes back and acknowledges what the offset has carried; only with the next batch it knows the newest claim."""
    query = instance()
    start = first_batch(root, query)
    with Away(root, "a"):
        for _ in range(2):
            send(root, "b")
            start = next_batch(query, start)
    assert [pick.claim for pick in start.carried([0]).values()] == [start.members[0].claim] != [start.claim]
    before = notes(root)
    send(root, "b")
    while start.members.keys() >= {0}:
        start = next_batch(query, start)
        send(root, "b")
    assert notes(root) > before
    next_batch(query, start)
    assert notes(root) == []


def test_client_notes_nothing(root: str) -> None:
    """C11: a plain client has no checkpoint."""
    with (
        spark_jms.connect(root, housekeeping=False) as context,
        context.consumer("orders") as consumer,
        Away(root, "a"),
    ):
        send(root, "b", "b")
        for _ in range(2):
            message = consumer.receive(30)
            assert message is not None
            message.acknowledge()
    assert notes(root) == []


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (json.dumps({"v": 2}), FormatVersionError, "has format version 2.*install a later spark-jms"),
        ("{", OffsetError, "is damaged"),
    ],
)
def test_note_that_cannot_be_read_is_refused_by_name(
    root: str, instance: Instance, content: str, error: type[Exception], said: str
) -> None:
    """C19: nothing is guessed, and nothing claimed."""
    query = instance()
    newest = while_a_is_away(root, query, first_batch(root, query))
    (info,) = Domain(root).storage.list(QUERY_PROGRESS)
    Domain(root).storage.put(info.path, content.encode())
    with pytest.raises(error, match=said):
        instance().next_batch(newest, Limits())


def test_drop_removes_the_note(root: str, instance: Instance) -> None:
    """C14: nothing of a dropped destination stays."""
    query = instance()
    while_a_is_away(root, query, first_batch(root, query))
    query.close()
    domain = Domain(root)
    with open_stores(domain) as store:
        drop_destination(domain, store, "orders", force=True)
    assert notes(root) == []
