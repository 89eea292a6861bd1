"""The speed rank of the stores (R20): none > replicated > file > jdbc, with the same objects on each.

    python -m benchmarks.ranking [--commits N] [--threads N] [--rounds N]

One process, THREADS threads, each with a record set of its own that it commits to: an object of 300 bytes put anew, and
two small ones; durable as the store is durable by default (the databases with fsync). Measured: acknowledged commits a
second, and the median of one commit when nobody else commits. Rounds go through the stores in turn, so that a noisy
minute hits all; the median of the rounds is shown. PostgreSQL is a server of our own on the same disk.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from store import Handle, Put, open_store

PADDING = b"x" * 300


@dataclass(frozen=True)
class Cell:
    store: str
    commits_per_s: float
    single_ms: float
    """Median of one commit at a time."""


@contextlib.contextmanager
def _postgresql() -> Iterator[str]:
    from spark_jms.testing.postgresql import PrivatePostgresql

    server = PrivatePostgresql(fsync=True)
    try:
        yield server.uri()
    finally:
        server.close()


@contextlib.contextmanager
def _in_directory(pattern: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="jmsq-ranking-") as directory:
        yield pattern.format(directory)


# The rank that is expected, best first. A store that keeps its own processes is a context manager like `_postgresql`.
STORES: dict[str, Callable[[], contextlib.AbstractContextManager[str]]] = {
    "none (memory)": lambda: contextlib.nullcontext(f"memory://ranking-{time.monotonic_ns()}"),
    # "replicated": _replicated,  <- here, when `benchmarks` may start daemons
    "file": lambda: _in_directory("{}/store"),
    "jdbc, SQLite": lambda: _in_directory("jdbc:sqlite:///{}/store.db"),
    "jdbc, PostgreSQL": _postgresql,
}


def _commit(handle: Handle, number: int) -> None:
    handle.commit([Put("state", PADDING + b"%d" % number), Put("floor", b"%d" % number), Put("claim", b"%d" % -number)])


def measure(name: str, commits: int, threads: int) -> Cell:
    with STORES[name]() as uri, open_store(uri) as store, store.connect("ranking") as session:
        handles = [session.open(f"orders/billing/{number}") for number in range(threads)]
        for handle in handles:
            for number in range(20):
                _commit(handle, number)  # warm
        singles = []
        for number in range(max(50, commits // 10)):
            begun_s = time.perf_counter()
            _commit(handles[0], number)
            singles.append(time.perf_counter() - begun_s)

        def work(handle: Handle) -> None:
            for number in range(commits // threads):
                _commit(handle, number)

        workers = [threading.Thread(target=work, args=(handle,)) for handle in handles]
        begun_s = time.perf_counter()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        took_s = time.perf_counter() - begun_s
    return Cell(name, commits // threads * threads / took_s, statistics.median(singles) * 1000)


def rank(commits: int, threads: int, rounds: int, names: Sequence[str] = tuple(STORES)) -> list[Cell]:
    cells = [measure(name, commits, threads) for _ in range(rounds) for name in names]
    return [
        Cell(
            name,
            statistics.median(cell.commits_per_s for cell in cells if cell.store == name),
            statistics.median(cell.single_ms for cell in cells if cell.store == name),
        )
        for name in names
    ]


def table(cells: Sequence[Cell]) -> str:
    """In Markdown; `ratio` is to the store before it in the rank."""
    lines = ["| Store | commits/s | ratio to the one above | one commit, median |", "|---|---|---|---|"]
    for number, cell in enumerate(cells):
        ratio = f"{cell.commits_per_s / cells[number - 1].commits_per_s:.2f}" if number else "–"
        lines.append(f"| {cell.store} | {cell.commits_per_s:,.0f} | {ratio} | {cell.single_ms:.2f} ms |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    cells = rank(given.commits, given.threads, given.rounds)
    print(table(cells))
    held = all(one.commits_per_s > two.commits_per_s for one, two in itertools.pairwise(cells[:3]))
    print(f"the rank none > file > jdbc {'holds' if held else 'does not hold'}")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
