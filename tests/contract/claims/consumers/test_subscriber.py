"""A consumer as the source and the client use it: its thread, its session, its lock, a damaged domain (C5, C9, C16)."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.records.life_cycle import AcknowledgementTable
from spark_jms.claims.servers.stores import store_of
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.core.records.life_cycle import Acknowledgement
from spark_jms.errors import ClosedError, ConsumerClosedException, RecordSetError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.checkpoints import commit_path
from spark_jms.store import MemoryStore
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import domain_of, members_of, records_of

pytestmark = pytest.mark.usefixtures("sharing")


def test_table_behind_its_store_is_refused() -> None:
    """C5, C16: if the store knows more messages than the table, new messages would count as done without being read."""
    with memory_domain("file", orders="queue") as root, connect(root) as context:
        producer = context.producer("orders")
        for n in range(3):
            producer.send(text=str(n))
        with context.consumer("orders", prefetch=10) as consumer:
            last = [consumer.receive(timeout=10) for _ in range(3)][-1]
            assert last is not None
            last.acknowledge()
        log = domain_of(context).log("orders")
        version = log.refresh().version
        Path(log.storage.uri, commit_path(version)).unlink()
        fresh = Domain(domain_of(context).root)
        subscriber = Subscriber(fresh, records_of(context), "orders", "-", "q", ConsumerSettings())
        with pytest.raises(RecordSetError, match=r"the store knows message 3 of orders/-/0, but the table ends at 2"):
            subscriber.next_batch(Batch("q"), Limits())
        subscriber.close()


def test_fenced_consumer_stays_closed() -> None:
    """C9: the background thread may find out first that the session ended; the next batch raises the same error."""
    with memory_domain(orders="queue") as root, connect(root) as context:
        for n in range(3):
            context.producer("orders").send(text=str(n))
        subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", ConsumerSettings())
        assert subscriber.next_batch(Batch("q"), Limits(max_messages=1)) is not None
        store = store_of(records_of(context), HOME)
        assert isinstance(store, MemoryStore)
        store.crash(members_of(subscriber).session)
        with pytest.raises(ConsumerClosedException):
            members_of(subscriber).commit(
                {m: h.state.attach("q", "new") for m, h in members_of(subscriber).held.items()}
            )
        with pytest.raises(ConsumerClosedException):
            subscriber.next_batch(Batch("q"), Limits())
        with pytest.raises(ConsumerClosedException):
            members_of(subscriber).open(0)
        subscriber.close()


def test_consumer_without_servers_works_in_the_calling_thread() -> None:
    """C9, M10: no thread, and one session that is there from the start: its store's errors are the caller's."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        before, sessions = threading.active_count(), len(records_of(context).sessions())
        subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", ConsumerSettings())
        assert len(records_of(context).sessions()) == sessions + 1
        assert list(subscriber.parts) == [HOME]
        assert threading.active_count() == before
        assert subscriber.next_batch(Batch("q"), Limits()) is None
        assert subscriber.away() == {}
        subscriber.close()
        assert len(records_of(context).sessions()) == sessions


def test_closed_consumer_flushes_nothing_and_has_no_session() -> None:
    """C9: its background thread may come once more."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", ConsumerSettings())
        assert subscriber.has_session()
        subscriber.close()
        subscriber.close()
        subscriber.flush_outbox()
        subscriber.flush_life_cycle()
        subscriber.make_room()
        subscriber.leave_all()
        assert subscriber.hand_over() == 0
        assert not subscriber.has_session()
        assert not subscriber.has_news()
        with pytest.raises(ClosedError, match="consumer q of orders is closed"):
            subscriber.next_batch(Batch("q"), Limits())


@pytest.mark.parametrize("servers", [(), ("a", "b")])
def test_receive_does_not_wait_for_the_acknowledgement_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: tuple[str, ...]
) -> None:
    """C8, M10: the background thread writes it without the consumer's lock, also where the destination is on servers. One commit has
    the acknowledgements of all servers."""
    orders: dict[str, object] = {"kind": "queue"}
    if servers:
        orders = {"kind": "distributed-queue", "servers": list(servers)}
    module: dict[str, object] = {"destinations": {"orders": orders}}
    if servers:
        module["servers"] = {name: {"store": "file"} for name in servers}
    root = str(tmp_path / "root")
    apply(root, module)
    write, begun, proceed = AcknowledgementTable.write, threading.Event(), threading.Event()

    def slow(self: AcknowledgementTable, outboxes: Mapping[int, Sequence[Acknowledgement]]) -> dict[int, int]:
        begun.set()
        assert proceed.wait(30)
        return write(self, outboxes)

    with connect(root, housekeeping=False) as context:
        send = context.producer("orders").send
        for n in range(8):
            send(text=str(n))
        subscriber = Subscriber(domain_of(context), records_of(context), "orders", "-", "q", ConsumerSettings())
        first = subscriber.next_batch(Batch("q", table=subscriber.table_id), Limits())
        assert first is not None
        assert first.count == 8
        send(text="8")
        second = subscriber.next_batch(first, Limits())
        assert second is not None
        table = domain_of(context).acknowledgements("orders")
        version = table.refresh().version
        monkeypatch.setattr(AcknowledgementTable, "write", slow)
        flushing = threading.Thread(target=subscriber.flush_outbox, daemon=True)
        flushing.start()
        assert begun.wait(30)
        assert subscriber.next_batch(second, Limits()) is None
        proceed.set()
        flushing.join(30)
        assert table.refresh().version == version + 1
        subscriber.close()
