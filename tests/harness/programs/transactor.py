"""Processes that make transactions and are killed in them: python transactor.py. Reads a line of JSON for each, and answers with a
line.

{"root": …, "function": …, "nth": …, "when": "before" or "after", "database": …}   one transaction, killed there; `function` "": not
{"root": …, "transfers": …, "linger_s": …, "seed": …, "database": …}               a bank, killed so long after so many transfers

`database` is a file of SQLite, or a postgresql: URI; "": none. What a killed process has written is the system's, so nothing here
waits for a disk.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import psycopg

from spark_jms import connect
from spark_jms.claims.transactions.last_resource import LastResource
from spark_jms.claims.transactions.transaction import Coordinator, Coordinators
from spark_jms.client import TransactedSession
from spark_jms.client.receiving.delivery import TransactedDelivery
from spark_jms.client.transactions import coordinated_commit

PLACES: dict[str, object] = {
    "begin": Coordinator,
    "prepare": Coordinator,
    "enter": LastResource,
    "stage_collected": coordinated_commit,
    "admit": coordinated_commit,
    "pledge": TransactedDelivery,
    "decide": Coordinator,
    "append_transfer": coordinated_commit,
    "end": TransactedDelivery,
    "complete": Coordinators,
}


def arm(function: str, nth: int, when: str) -> None:
    """Kill this process at the nth call."""
    place, calls = PLACES[function], 0
    original: Callable[..., Any] = getattr(place, function)

    def struck(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **options)
        if calls == nth and when == "after":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(place, function, struck)


def opened(database: str) -> Any:
    if database.startswith("postgresql:"):
        return psycopg.connect(database)
    connection = sqlite3.connect(database)
    connection.execute("PRAGMA synchronous = OFF")
    return connection


def account(session: TransactedSession) -> tuple[Any, int]:
    """The connection, and what the account has."""
    connection = session.connection
    return connection, connection.execute("SELECT coins FROM account").fetchone()[0]


def bank(root: str, database: str, seed: int, told: int) -> None:
    """Coins go to and fro between two queues and an account, until this process is killed. `told`: a pipe that gets a byte for each
    transfer."""
    chance = random.Random(seed)
    with connect(root, housekeeping=False) as context:
        context.last_resource("bank", lambda: opened(database))
        with context.transacted_session(last_resource="bank") as session:
            queues = ("left", "right")
            producers = {name: session.producer(name) for name in queues}
            consumers = {name: session.consumer(name, prefetch=1) for name in queues}
            while True:
                connection, coins = account(session)
                source, target = chance.choice((*queues, "account")), chance.choice((*queues, "account"))
                if source == "account" and not coins:
                    continue
                if source != "account" and consumers[source].receive(timeout=0.05) is None:
                    session.rollback()
                    continue
                if target != "account":
                    producers[target].send(text="coin")
                change = (target == "account") - (source == "account")
                connection.execute(f"UPDATE account SET coins = coins + {change}, transfers = transfers + 1")
                if chance.random() < 0.1:
                    session.rollback()
                else:
                    session.commit()
                    os.write(told, b".")


def transact(root: str, database: str) -> None:
    """A coin of `left` and one of `right` change places, and the account counts it."""
    with connect(root, housekeeping=False) as context, ExitStack() as stack:
        if database:
            context.last_resource("bank", lambda: opened(database))
        session = stack.enter_context(context.transacted_session(last_resource="bank" if database else None))
        if database:
            session.connection.execute("UPDATE account SET transfers = transfers + 1")
        coins = {name: session.consumer(name, prefetch=1).receive(timeout=10) for name in ("left", "right")}
        for name, to in (("left", "right"), ("right", "left")):
            coin = coins[name]
            assert coin is not None
            session.producer(to).send(text=coin.text)
        session.commit()


def one_child(order: dict[str, Any], told: int) -> None:
    if "transfers" in order:
        bank(order["root"], order["database"], order["seed"], told)
    if order["function"]:
        arm(order["function"], order["nth"], order["when"])
    transact(order["root"], order["database"])
    os._exit(0)


def kill_after(child: int, transfers: int, linger_s: float, done: int) -> None:
    """In the middle of the transfers that follow; also a child that makes none."""
    while transfers > 0 and select.select([done], [], [], 60.0)[0]:
        transfers -= len(os.read(done, transfers)) or transfers
    time.sleep(linger_s)
    os.kill(child, signal.SIGKILL)


def main() -> None:
    os.fsync = os.fdatasync = lambda _: None
    for line in sys.stdin:
        order = json.loads(line)
        done, told = os.pipe()
        child = os.fork()  # nothing else is open and no thread runs here
        if not child:
            one_child(order, told)
        os.close(told)
        if "transfers" in order:
            kill_after(child, order["transfers"], order["linger_s"], done)
        os.close(done)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    main()
