"""Processes of the test of conservation: `python conservation_app.py ROOT DIRECTORY` forks one for each line of its input.

A line is a role and a name; the answer is the pid. The children run until they are killed; what they did is in `NAME.jsonl`: one
line before and one after each send, one for each message that was received and for each move. A child that fails leaves
`NAME.error`. At the end of the input all of them are killed. Forking saves each child the second that the imports take.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from spark_jms import connect
from spark_jms.admin.purge import drop_backlog
from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.servers.stores import open_stores
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.errors import ConsumerClosedException, MemberUnavailableError
from spark_jms.log.destinations.domain import Domain

DEAR = "JMSPriority > 6"
_PACE_S = 0.01
Note = Callable[..., None]


def produce(root: str, note: Note, name: str) -> None:
    with connect(root, housekeeping=False) as context:
        producers = {destination: context.producer(destination) for destination in ("orders", "prices")}
        first = 0
        while True:
            destination, count = random.choice(["orders", "orders", "prices"]), random.choice([1, 1, 5, 20])
            texts = [f"{name}:{first + i}" for i in range(count)]
            first += count
            expiring = [text for text in texts if destination == "orders" and random.random() < 0.1]
            note(tried=texts, destination=destination, expiring=expiring)
            producers[destination].send_many(
                {
                    "text": text,
                    "priority": random.randint(0, 9),
                    "group_id": random.choice([None, None, "a", "b"]),
                    "time_to_live": 0.1 if text in expiring else None,
                }
                for text in texts
            )
            note(sent=texts)
            time.sleep(_PACE_S)


def consume(
    root: str, note: Note, destination: str, subscription: str | None = None, selector: str | None = None
) -> None:
    with connect(root, housekeeping=False) as context:
        while True:
            try:
                with context.consumer(
                    destination, subscription=subscription, selector=selector, prefetch=20
                ) as consumer:
                    while True:
                        message = consumer.receive(0.1)
                        if message is None:
                            continue
                        note(got=[message.member, message.sequence], again=message.redelivered)
                        chance = random.random()
                        if chance < 0.7:
                            message.acknowledge()
                        elif chance < 0.9:
                            message.reject()  # else the next one acknowledges it too
            except (ConsumerClosedException, MemberUnavailableError):
                continue


def administer(root: str, note: Note) -> None:
    """Moves messages to and fro, and discards some."""
    domain = Domain(root)
    store = open_stores(domain)
    while True:
        try:
            if random.random() < 0.3:
                drop_backlog(domain, store, random.choice(["aside", "orders"]), None, [0], wait_s=1)
            else:
                source, target = random.choice([("orders", "aside"), ("aside", "orders")])
                done = move(domain, store, MoveOrder(source, target, limit=random.choice([3, 40])), wait_s=1)
                if done.moved:
                    note(moved=done.moved)
        except MemberUnavailableError:
            continue
        time.sleep(_PACE_S)


def keep_house(root: str, note: Note) -> None:
    domain = Domain(root)
    store = open_stores(domain)
    keepers = [Housekeeper(domain, store, name) for name in domain.register.names()]
    while True:
        for keeper in keepers:
            keeper.run()
            assert not keeper.health.failures, keeper.health.failures
        time.sleep(_PACE_S)


def run(root: str, directory: Path, role: str, name: str) -> None:
    """In the child; it returns when the role fails."""
    random.seed()
    with open(directory / f"{name}.jsonl", "a", buffering=1) as out:

        def note(**row: object) -> None:
            out.write(json.dumps(row) + "\n")

        roles: dict[str, Callable[[], None]] = {
            "produce": lambda: produce(root, note, name),
            "consume-orders": lambda: consume(root, note, "orders"),
            "consume-aside": lambda: consume(root, note, "aside"),
            "consume-all": lambda: consume(root, note, "prices", "all"),
            "consume-dear": lambda: consume(root, note, "prices", "dear", DEAR),
            "administer": lambda: administer(root, note),
            "keep-house": lambda: keep_house(root, note),
        }
        try:
            roles[role]()
        except BaseException:  # noqa: BLE001 - the test reads it
            (directory / f"{name}.error").write_text(traceback.format_exc())


def main(root: str, directory: str) -> None:
    pa.array([0])  # imports pandas
    children: set[int] = set()
    for line in sys.stdin:
        role, name = line.split()
        child = os.fork()
        if not child:
            run(root, Path(directory), role, name)
            os._exit(1)
        children.add(child)
        print(child, flush=True)
        children -= {pid for pid in children if os.waitpid(pid, os.WNOHANG)[0]}
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
