"""Owners of transactions killed at every step; other processes recover (T16)."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from spark_jms import connect
from spark_jms.admin.servers import complete_transactions, transactions
from spark_jms.client import Context
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import coordinators_of, domain_of, records_of
from tests.harness.programs.transactor import opened
from tests.harness.project import PROGRAMS

TRANSACTOR = PROGRAMS / "transactor.py"
# How often a transaction of two consumers and two destinations takes each step.
STEPS = {
    "begin": 1,
    "stage_collected": 2,
    "admit": 2,
    "pledge": 2,
    "decide": 1,
    "append_transfer": 2,
    "end": 2,
}
POINTS = [
    ("begin", 1, "before"),
    *((step, nth, "after") for step, count in STEPS.items() for nth in range(1, count + 1)),
    ("complete", 2, "after"),  # the first one is of the coordinator that is taken
]
DECIDED = POINTS.index(("decide", 1, "after"))
COINS = 4
LIFE, LINGER_S = 50, 0.03  # of a bank: at most so many transfers, and then so long


class Transactor:
    """The processes that are killed are forked from one, whose imports cost more than all of them."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, root: str, function: str = "", nth: int = 1, when: str = "before", database: str = "") -> int:
        """One transaction. Returns the signal that ended it, or 0."""
        return self._ordered(root=root, function=function, nth=nth, when=when, database=database)

    def bank(self, root: str, transfers: int, linger_s: float, seed: int, database: str) -> int:
        return self._ordered(root=root, transfers=transfers, linger_s=linger_s, seed=seed, database=database)

    def _ordered(self, **order: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@contextmanager
def transactor() -> Iterator[Transactor]:
    with subprocess.Popen(
        [sys.executable, str(TRANSACTOR)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Transactor(process)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def process() -> Iterator[Transactor]:
    with transactor() as made:
        yield made


def coins(context: Context) -> dict[str, list[str]]:
    return {name: sorted(str(m.text) for m in context.browser(name)) for name in ("left", "right")}


def filled(context: Context) -> None:
    for name in ("left", "right"):
        context.producer(name).send_many({"text": f"{name}{number}"} for number in range(COINS))


@pytest.mark.timeout(900)
def test_an_owner_killed_at_any_step_leaves_all_or_nothing(process: Transactor) -> None:
    """T16: kill -9 before, between and after the steps. Up to the decision nothing has happened, from it on everything happens,
    once; and nothing stays open."""
    with memory_domain("file", left="queue", right="queue") as root, connect(root, housekeeping=False) as context:
        filled(context)
        for number, point in enumerate(POINTS):
            before = coins(context)
            assert process.run(root, *point) == signal.SIGKILL, point
            assert not complete_transactions(domain_of(context), records_of(context)), point
            after = coins(context)
            changed = {name: len(set(after[name]) - set(before[name])) for name in after}
            expected = int(number >= DECIDED)
            assert changed == {"left": expected, "right": expected}, point
            assert {name: len(found) for name, found in after.items()} == {"left": COINS, "right": COINS}, point
            assert sorted(after["left"] + after["right"]) == sorted(before["left"] + before["right"]), point
            assert not transactions(domain_of(context), records_of(context)), point
        assert process.run(root) == 0  # the pledges, files and coordinators are free


@pytest.mark.timeout(900)
def test_the_next_transactions_and_consumers_recover(process: Transactor) -> None:
    """T16: without housekeeping or a command; random steps, and no coin is lost or doubled."""
    chance = random.Random(7)
    with memory_domain("file", left="queue", right="queue") as root, connect(root, housekeeping=False) as context:
        filled(context)
        every = sorted(coins(context)["left"] + coins(context)["right"])
        for _ in range(5):
            process.run(root, *chance.choice(POINTS))
        assert process.run(root) == 0
        with connect(root) as keeper:  # a last one may have been left by the one before the end
            complete_transactions(domain_of(keeper), records_of(keeper))
        found = coins(context)
        assert sorted(found["left"] + found["right"]) == every
        assert not transactions(domain_of(context), records_of(context))


# -- with a database as last resource -----------------------------------------------------------------------------------
@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """With an empty account."""
    if request.param == "sqlite":
        where = str(tmp_path / "bank.db")
    else:
        where = request.getfixturevalue("postgresql").uri().removeprefix("jdbc:").split("?")[0]
    return made_account(where)


def made_account(where: str) -> str:
    with closing(opened(where)) as connection:
        connection.execute("DROP TABLE IF EXISTS account")
        connection.execute("DROP TABLE IF EXISTS jmsq_decisions")
        connection.execute("CREATE TABLE account (coins INTEGER, transfers INTEGER)")
        connection.execute("INSERT INTO account VALUES (0, 0)")
        connection.commit()
    return where


def account(database: str) -> tuple[int, int]:
    """Coins and transfers."""
    with closing(opened(database)) as connection:
        coins, transfers = connection.execute("SELECT coins, transfers FROM account").fetchone()
    return coins, transfers


@pytest.mark.timeout(900)
def test_an_owner_killed_around_the_database_commit_leaves_all_or_nothing(process: Transactor, database: str) -> None:
    """T16: kill -9 before and behind PREPARED, the row, the commit, and what follows; the account tells which it is."""
    points = [("prepare", 1, "before"), ("prepare", 1, "after"), ("enter", 1, "after"), ("decide", 1, "before")]
    points += [("decide", 1, "after"), ("append_transfer", 1, "after"), ("end", 1, "after")]
    with memory_domain("file", left="queue", right="queue") as root, connect(root, housekeeping=False) as context:
        filled(context)
        context.last_resource("bank", lambda: opened(database), create=True)
        for number, point in enumerate(points):
            before, (_, transfers) = coins(context), account(database)
            assert process.run(root, *point, database=database) == signal.SIGKILL, point
            assert not coordinators_of(context).recover(), point
            after, decided = coins(context), int(number >= points.index(("decide", 1, "before")))
            assert account(database)[1] - transfers == decided, point
            changed = {name: len(set(after[name]) - set(before[name])) for name in after}
            assert changed == {"left": decided, "right": decided}, point
            assert not transactions(domain_of(context), records_of(context)), point
        assert process.run(root, database=database) == 0


@pytest.mark.timeout(1_800)
def test_a_bank_that_is_killed_keeps_its_sum(process: Transactor, database: str) -> None:
    """T16: coins between two queues and an account, whose owner is killed at random; 500 transfers with PostgreSQL."""
    keep_the_sum(process, database, transfers=500 if database.startswith("postgresql:") else 100)


def keep_the_sum(process: Transactor, database: str, transfers: int) -> None:
    chance = random.Random()
    with memory_domain("file", left="queue", right="queue") as root, connect(root, housekeeping=False) as context:
        filled(context)
        context.last_resource("bank", lambda: opened(database), create=True)
        while account(database)[1] < transfers:
            ends = process.bank(
                root, chance.randint(0, LIFE), chance.uniform(0, LINGER_S), chance.randrange(10**6), database
            )
            assert ends == signal.SIGKILL
            assert not coordinators_of(context).recover()
            found = coins(context)
            assert len(found["left"]) + len(found["right"]) + account(database)[0] == 2 * COINS
        assert not transactions(domain_of(context), records_of(context))
