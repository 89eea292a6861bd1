"""A replicated topic on PostgreSQL and on a file store: PostgreSQL is killed, then the folder is moved away (D4, D6)."""

from __future__ import annotations

import signal
from collections.abc import Collection
from pathlib import Path

import spark_jms
from spark_jms.client import Consumer, Context
from spark_jms.errors import MemberLostException, MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.testing.domain import wait_until
from spark_jms.testing.postgresql import PrivatePostgresql

LIMIT_S = 120.0


def send(context: Context, phase: str) -> None:
    """Two messages for each member, persistent and not."""
    with context.producer("prices") as producer:
        for n in range(2):
            producer.send(text=f"{phase} kept {n}")
            producer.send(text=f"{phase} lost {n}", delivery_mode="NON_PERSISTENT")


def received(consumer: Consumer, *phases: str, kept: Collection[str] = (), perhaps: Collection[str] = ()) -> None:
    """All messages of `phases`, those of `kept` that are persistent, and nothing else but the others of `perhaps`."""
    modes = {**dict.fromkeys(phases, ("kept", "lost")), **dict.fromkeys(kept, ("kept",))}
    expected = {f"{phase} {mode} {n}" for phase, each in modes.items() for mode in each for n in range(2)}
    allowed = expected | {f"{phase} lost {n}" for phase in perhaps for n in range(2)}
    found: set[str] = set()
    while not found >= expected:
        message = consumer.receive(LIMIT_S)
        assert message is not None, f"without {expected - found}"
        assert message.text in allowed - found, f"{message.text} after {sorted(found)}"
        message.acknowledge()
        found.add(message.text)


def subscribed(context: Context, destination: str, subscription: str | None) -> Consumer:
    """Made again as soon as a server answers."""
    made: list[Consumer] = []

    def try_again() -> bool:
        try:
            made.append(context.consumer(destination, subscription=subscription))
        except (MemberLostException, MemberUnavailableError):
            return False
        return True

    wait_until(try_again, LIMIT_S)
    return made[0]


def lose(consumer: Consumer) -> None:
    """The consumer notices by itself that its server cannot be reached."""

    def lost() -> bool:
        try:
            assert consumer.receive(0) is None
        except MemberLostException:
            return True
        return False

    wait_until(lost, LIMIT_S)
    consumer.close()


def test_subscriptions_of_one_server_go_on_without_the_other(tmp_path: Path, database: PrivatePostgresql) -> None:
    """D4, D6: the subscription on the server that is up gets every message; the one on the other gets the persistent ones of the
    outage when it is back, and none that is not. A subscriber on the topic's name is made again on the server that answers."""
    root = str(tmp_path / "root")
    stores = {"database": database.uri("servers"), "folder": "file"}
    prices = {"kind": "distributed-topic", "servers": list(stores), "forwarding": "replicated"}
    servers = {name: {"store": store, "lease": "4 s"} for name, store in stores.items()}
    spark_jms.apply(root, {"servers": servers, "destinations": {"prices": prices}})
    table, folder = Domain(root).log("prices"), tmp_path / "root" / "_jmsq" / "stores" / "folder"

    def is_down(*names: str) -> None:
        wait_until(lambda: set(table.refresh().destination.down) == set(names), LIMIT_S)

    with spark_jms.connect(root) as context:
        there, here = (subscribed(context, f"{name}@prices", "billing") for name in stores)
        send(context, "before")
        received(there, "before")
        received(here, "before")
        database.stop(signal.SIGKILL)
        send(context, "at the kill")
        lose(there)
        is_down("database")
        send(context, "without")
        received(here, "at the kill", "without")
        passing = subscribed(context, "prices", None)
        send(context, "later")
        received(passing, "later")
        received(here, "later")
        database.start()
        is_down()
        send(context, "after")
        there = subscribed(context, "database@prices", "billing")
        received(there, "after", kept=["at the kill", "without", "later"], perhaps=["at the kill"])
        received(passing, "after")
        received(here, "after")
        folder.rename(folder.with_name("away"))
        for consumer in (passing, here):
            lose(consumer)
        is_down("folder")
        passing = subscribed(context, "prices", None)
        send(context, "elsewhere")
        received(passing, "elsewhere")
        received(there, "elsewhere", perhaps=["at the kill"])
        folder.with_name("away").rename(folder)
        is_down()
        here = subscribed(context, "folder@prices", "billing")
        send(context, "at last")
        received(here, "at last", kept=["elsewhere"])
        received(passing, "at last")
        assert here.receive(0) is None
