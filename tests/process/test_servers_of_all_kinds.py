"""A queue on three servers, each with a store of another kind, while the stores are killed, stopped and moved away (D4, M10).

One query receives all the time, in this process; PostgreSQL is killed, the daemons of the replicated store are stopped and
the folder of the file store is moved away.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import spark_jms
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.distributed import DistributedSubscriber
from spark_jms.claims.stores import open_stores
from spark_jms.client import Context
from spark_jms.core.batch import Batch, Limits
from spark_jms.log.domain import Domain
from spark_jms.setup.errors import PostgresqlNotFoundError
from spark_jms.testing.postgresql import PrivatePostgresql
from spark_jms.testing.waiting import wait_until
from tests.daemons import Daemons

LIMIT_S = 120.0
MEMBERS = {"database": 0, "memory": 1, "folder": 2}


@pytest.fixture
def database() -> Iterator[PrivatePostgresql]:
    try:
        server = PrivatePostgresql()
    except PostgresqlNotFoundError as error:
        pytest.skip(f"no PostgreSQL server: {error}")
    yield server
    server.close()


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    made = Daemons(tmp_path / "global", count=2, memory="256M")
    yield made
    made.close()


class Receiving:
    """A query that delivers what it gets to a sink, and continues."""

    def __init__(self, root: str, context: Context) -> None:
        domain = Domain(root)
        self.stores = open_stores(domain)
        self.subscriber = DistributedSubscriber(domain, self.stores, "orders", "-", "q", ConsumerSettings())
        self.last = Batch("q", table=self.subscriber.table_id)
        self.sink: Counter[tuple[int, int]] = Counter()
        self.sent: set[tuple[int, int]] = set()
        self._producer = context.producer("orders")

    def send_round(self) -> None:
        """One message to each member."""
        self.sent |= {(at.member, at.sequence) for at in (self._producer.send(text="x") for _ in MEMBERS)}

    def step(self) -> None:
        batch = self.subscriber.next_batch(self.last, Limits())
        if batch is None:
            self.subscriber.hand_over()
            return
        assert not self.subscriber.resume(batch)
        for member, pick in batch.delivered.items():
            self.sink.update((member, number) for number in pick.picks.numbers().tolist())
        self.last = batch

    def until(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            self.step()
            return done()

        wait_until(look, LIMIT_S)

    def until_empty(self, without: str = "") -> None:
        """Everything sent is received, but for one server."""
        left_out = MEMBERS.get(without)
        self.until(lambda: {key for key in self.sent if key[0] != left_out} <= self.sink.keys())

    def close(self) -> None:
        self.subscriber.close()
        self.stores.close()


def test_query_goes_on_while_stores_of_all_kinds_fail(
    tmp_path: Path, database: PrivatePostgresql, daemons: Daemons
) -> None:
    """D4, M10, C5: whichever store is away, the messages of the other two servers are delivered; those of the third wait, and
    each comes exactly once."""
    root = str(tmp_path / "root")
    stores = {"database": database.uri("servers"), "memory": daemons.uri("servers"), "folder": "file"}
    orders = {"kind": "distributed-queue", "servers": list(stores)}
    servers = {name: {"store": store} for name, store in stores.items()}
    spark_jms.apply(root, {"servers": servers, "destinations": {"orders": orders}})
    folder = Path(root) / "_jmsq" / "stores" / "folder"

    def stop_daemons(number: int) -> None:
        for index in (0, 1):
            daemons.signal(index, number)

    faults: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "database": (lambda: database.stop(signal.SIGKILL), database.start),
        "memory": (lambda: stop_daemons(signal.SIGSTOP), lambda: stop_daemons(signal.SIGCONT)),
        "folder": (lambda: folder.rename(tmp_path / "away"), lambda: (tmp_path / "away").rename(folder)),
    }
    with spark_jms.connect(root, housekeeping=False) as context:
        query = Receiving(root, context)
        try:
            query.send_round()
            query.until_empty()
            for server, (fail, mend) in faults.items():
                fail()
                query.send_round()
                query.until_empty(without=server)
                query.until(lambda away=server: away in query.subscriber.away())
                query.send_round()
                query.until_empty(without=server)
                waiting = {key for key in query.sent if key[0] == MEMBERS[server]} - query.sink.keys()
                assert len(waiting) == 2
                mend()
                query.until_empty()
            assert set(query.sink.values()) == {1}
            assert query.sink.keys() == query.sent
        finally:
            stop_daemons(signal.SIGCONT)
            query.close()
