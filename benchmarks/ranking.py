"""The speed rank of the stores (R20): none > replicated > file > jdbc, with the same objects on each.

One process; each thread has a record set of its own and commits to it: an object of 300 bytes put anew, and two small
ones, durable as the store is durable by default (the databases with fsync, the replicated store in the memory of two of
three daemons). Measured: acknowledged commits a second with 1, 8 and 64 threads, so with as many commits in flight. The
stores take turns, round by round, each round on an empty store. PostgreSQL is a server of our own on the same disk.

How the file store compares depends on the disk. So beside it stands the file store on a disk whose forced writes take
SLOW_MS longer: simulated, by a wait after each, and said so in its name.

Below the record sets of the replicated store are its objects: a table of its own tells how many of 1 KiB it acknowledges
a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.measure import PAYLOAD_BYTES, Meter
from benchmarks.results import Sample, TargetComparison
from benchmarks.workbench import Workbench
from spark_jms.store import Handle, Put, Store, open_store
from spark_jms.store.disk import Disk
from spark_jms.store.file.store import FileBackend
from spark_jms.store.ledger.store import LedgerStore

NONE, REPLICATED, FILE, SQLITE, POSTGRESQL = "none (memory)", "replicated", "file", "jdbc, SQLite", "jdbc, PostgreSQL"
SLOW_MS = 1.0
SLOW_FILE = f"file, forced writes {SLOW_MS:g} ms longer (simulated)"
STORES = (NONE, REPLICATED, FILE, SLOW_FILE, SQLITE, POSTGRESQL)
# The store above each in the rank: it should be at least as fast.
ABOVE = {REPLICATED: NONE, FILE: REPLICATED, SLOW_FILE: REPLICATED, SQLITE: FILE, POSTGRESQL: FILE}
IN_FLIGHT = (1, 8, 64)
OBJECTS = "replicated store: objects of 1 KiB created"
WINDOW_S, QUICK_WINDOW_S = 3.0, 0.5
WARM_COMMITS = 20
PADDING = b"x" * 300
REGION_MB = 64

Places = dict[str, Callable[[int], Store]]
"""An empty store of each kind for one round."""


class SlowDisk(Disk):
    def sync(self, fd: int) -> None:
        super().sync(fd)
        time.sleep(SLOW_MS / 1000)


def table_of(in_flight: int) -> str:
    return f"store rank, {in_flight} in flight"


def run(bench: Workbench) -> None:
    """Starts what the stores need, measures, stops it. A store that cannot be started is reported by name."""
    window_s = QUICK_WINDOW_S if bench.options.quick else WINDOW_S
    rounds = bench.options.runs + 1
    bench.recorder.part("store rank", rounds * (len(STORES) + 1))
    for table in map(table_of, IN_FLIGHT):
        for name, above in ABOVE.items():
            bench.recorder.compare(TargetComparison(table, name, above, 1.0, at_least=False))
    with contextlib.ExitStack() as stack:
        home = bench.new_path("ranking")
        home.mkdir(parents=True)
        places = _places(bench, home, stack)
        for number in range(rounds):
            for name, place in places.items():
                bench.recorder.doing(f"store rank: {name}")
                cells = [(table_of(count), name) for count in IN_FLIGHT]
                bench.recorder.attempt(cells, lambda: _rank(bench, name, place(number), number, window_s))  # noqa: B023
                bench.recorder.step()
            if REPLICATED in places:
                cells = [(OBJECTS, f"{count} in flight") for count in IN_FLIGHT]
                bench.recorder.attempt(cells, lambda: _objects(bench, home / "daemons", number, window_s))  # noqa: B023
            bench.recorder.step()


def _places(bench: Workbench, home: Path, stack: contextlib.ExitStack) -> Places:
    found: Places = {NONE: lambda number: open_store(f"memory://{home.name}-{number}")}

    def replicated() -> None:
        stack.enter_context(daemons(home / "daemons"))
        found[REPLICATED] = lambda number: open_store(
            f"replicated://{home}/daemons?store=rank{number}&region_mb={REGION_MB}"
        )

    def postgresql() -> None:
        from spark_jms.testing.postgresql import PrivatePostgresql

        server = PrivatePostgresql(fsync=True)
        stack.callback(server.close)
        found[POSTGRESQL] = lambda number: open_store(server.uri())

    cells = [(table_of(count), REPLICATED) for count in IN_FLIGHT]
    cells += [(OBJECTS, f"{count} in flight") for count in IN_FLIGHT]
    bench.recorder.attempt(cells, replicated)
    found[FILE] = lambda number: open_store(str(home / f"file-{number}"))
    found[SLOW_FILE] = lambda number: LedgerStore(FileBackend(str(home / f"slow-{number}"), disk=SlowDisk()))
    found[SQLITE] = lambda number: open_store(f"jdbc:sqlite:///{home}/sqlite-{number}.db")
    bench.recorder.attempt([(table_of(count), POSTGRESQL) for count in IN_FLIGHT], postgresql)
    return found


@contextlib.contextmanager
def daemons(directory: Path) -> Iterator[None]:
    """Three daemons of a replicated store."""
    from spark_jms.store.regions.admin.cluster import Cluster

    cluster = Cluster(str(directory))
    cluster.write_config(3, "2G", first_port=17_400)
    try:
        cluster.up()
        yield
    finally:
        cluster.down(force=True)


def _commit(handle: Handle, number: int) -> None:
    handle.commit([Put("state", PADDING + b"%d" % number), Put("floor", b"%d" % number), Put("claim", b"%d" % -number)])


def _rank(bench: Workbench, name: str, empty: Store, run_number: int, window_s: float) -> None:
    """One round of one store: 1, 8 and 64 in flight, one after the other."""
    with empty as store, store.connect("ranking") as session:
        handles = [session.open(f"orders/billing/{number}") for number in range(max(IN_FLIGHT))]
        for number in range(WARM_COMMITS):
            _commit(handles[0], number)
        for count in IN_FLIGHT:
            with Meter() as meter:
                done = commits(handles[:count], window_s)
            rate = done / meter.seconds
            bench.recorder.sample(
                Sample(table_of(count), name, run_number, rate, "commits/s", meter.seconds, meter.noise)
            )


def commits(handles: list[Handle], window_s: float) -> int:
    """A thread per record set commits without pause until the time is over. Returns the number of acknowledged commits."""
    counts = [0] * len(handles)
    failures: list[BaseException] = []
    deadline_s = time.monotonic() + window_s

    def work(number: int) -> None:
        try:
            while time.monotonic() < deadline_s and not failures:
                _commit(handles[number], counts[number])
                counts[number] += 1
        except BaseException as error:  # noqa: BLE001 - raised below, in the waiting thread
            failures.append(error)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(handles))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failures:
        raise failures[0]
    return sum(counts)


def _objects(bench: Workbench, directory: Path, run_number: int, window_s: float) -> None:
    for count in IN_FLIGHT:
        with Meter() as meter:
            done, took_s = asyncio.run(created(directory, f"objects{run_number}-{count}", count, window_s))
        cell = f"{count} in flight"
        bench.recorder.sample(
            Sample(OBJECTS, cell, run_number, done / took_s, "acknowledged writes/s", meter.seconds, meter.noise)
        )


async def created(directory: Path, name: str, in_flight: int, window_s: float) -> tuple[int, float]:
    """The number of acknowledged objects and the seconds they took. Each worker deletes the object it made 256 objects ago,
    uncounted, so that the store does not grow."""
    from spark_jms.store.regions.client.instance import StoreInstance
    from spark_jms.store.regions.directory.global_directory import GlobalDirectory

    instance = await StoreInstance.open(GlobalDirectory(str(directory)), name, region_bytes=REGION_MB << 20)
    data, done = b"x" * PAYLOAD_BYTES, 0
    try:
        connection = await instance.connection("ranking")
        begun_s = time.perf_counter()

        async def work() -> None:
            nonlocal done
            made: list[int] = []
            while time.perf_counter() - begun_s < window_s:
                made.append(await connection.create(data))
                done += 1
                if len(made) >= 256:
                    await connection.delete(made.pop(0))

        await asyncio.gather(*(work() for _ in range(in_flight)))
        took_s = time.perf_counter() - begun_s
    finally:
        await instance.close()
    return done, took_s
