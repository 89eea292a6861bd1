"""A process with a store instance of its own. It writes, updates and deletes numbered objects, several at once, and keeps
a journal of the operations it began (b), those that were acknowledged (a), and the objects it found after a failure (f).
After every failure it attaches again.

python -m tests.harness.stores.regions_writer DIRECTORY STORE SEED JOURNAL        SIGTERM ends it, SIGUSR2 drops its connection
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import struct
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import StoreCorruptError, StoreError
from spark_jms.store.regions.client.instance import StoreInstance
from spark_jms.store.regions.client.objects import Objects
from spark_jms.store.regions.directory.global_directory import GlobalDirectory

REGION_BYTES = 256 * 1024
CONNECTION = "test.writer"
THRESHOLDS = Thresholds(maximum_message_size_percent=10)
IN_FLIGHT = 8
KEYS = 150
_HEAD = struct.Struct("<QQ")


def payload(key: int, version: int) -> bytes:
    size = random.Random(key * 1_000_003 + version).randrange(0, 5_000)
    body = _HEAD.pack(key, version) + random.Random(key ^ version).randbytes(size)
    return body + hashlib.sha256(body).digest()


def check_payload(data: bytes) -> tuple[int, int]:
    """Key and version of a complete object."""
    key, version = _HEAD.unpack_from(data)
    if data != payload(key, version):
        raise AssertionError(f"object {key}, version {version}: its bytes are not those that were written")
    return key, version


async def contents(objects: Objects) -> dict[int, tuple[int, int]]:
    """Key -> (handle, version). Every object must be complete and unique."""
    found: dict[int, tuple[int, int]] = {}
    for handle in objects.handles():
        key, version = check_payload(await objects.read(handle))
        if key in found:
            raise AssertionError(f"object {key} exists twice")
        found[key] = (handle, version)
    return found


@dataclass
class Account:
    """What a journal allows: for each key the versions that it may have now (0 = deleted or never written)."""

    allowed: dict[int, set[int]] = field(default_factory=dict)
    acknowledged: list[float] = field(default_factory=list)  # when, by the machine's monotonic clock
    attached: list[tuple[float, int]] = field(default_factory=list)

    @classmethod
    def of(cls, path: Path) -> Account:
        account = cls()
        for line in path.read_text().splitlines():
            kind, *words = line.split()
            if kind == "o":
                account.attached.append((float(words[0]), int(words[1])))
                continue
            key, version = int(words[0]), int(words[1])
            if kind == "b":
                account.allowed.setdefault(key, {0}).add(version)
            else:
                account.allowed[key] = {version}
                if kind == "a":
                    account.acknowledged.append(float(words[2]))
        return account

    def check(self, found: dict[int, tuple[int, int]]) -> None:
        for key, allowed in self.allowed.items():
            version = found.get(key, (0, 0))[1]
            if version not in allowed:
                raise AssertionError(
                    f"object {key} has version {version}, acknowledged or begun were {sorted(allowed)}"
                )
        for key in found.keys() - self.allowed.keys():
            raise AssertionError(f"object {key} was never written")


class Writer:
    def __init__(self, directory: str, store: str, seed: int, journal: Path) -> None:
        self._directory, self._store = GlobalDirectory(directory), store
        self._random = random.Random(seed)
        self._path = journal
        self._journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._version = max((max(v) for v in Account.of(journal).allowed.values()), default=0)
        self._stopping = False
        self.instance: StoreInstance | None = None

    def _note(self, kind: str, *words: object) -> None:
        os.write(self._journal, (" ".join(map(str, (kind, *words))) + "\n").encode())

    def stop(self) -> None:
        self._stopping = True

    def cut(self) -> None:
        if self.instance is not None:
            self.instance._attachment._connection.abort()

    async def run(self) -> None:
        while not self._stopping:
            try:
                await self._once()
            except StoreCorruptError:
                raise
            except StoreError as error:
                print(f"{time.monotonic():.2f} {type(error).__name__}: {error.detail()}", flush=True)
                await asyncio.sleep(0.05)
            finally:
                instance, self.instance = self.instance, None
                if instance is not None:
                    await instance.close()

    async def _once(self) -> None:
        localindex = self._random.randrange(3)
        self.instance = await StoreInstance.open(
            self._directory, self._store, region_bytes=REGION_BYTES, localindex=localindex, thresholds=THRESHOLDS
        )
        self._note("o", time.monotonic(), self.instance.daemon)
        objects = await self.instance.connection(CONNECTION)
        found = await contents(objects)
        Account.of(self._path).check(found)
        for key in range(1, KEYS + 1):
            self._note("f", key, found.get(key, (0, 0))[1])
        handles = {key: handle for key, (handle, _) in found.items()}
        workers = [asyncio.create_task(self._work(objects, handles, number)) for number in range(IN_FLIGHT)]
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        for worker in done:
            worker.result()

    async def _work(self, objects: Objects, handles: dict[int, int], number: int) -> None:
        """Each worker has keys of its own."""
        while not self._stopping:
            key = self._random.randrange(KEYS // IN_FLIGHT) * IN_FLIGHT + number + 1
            handle, chance = handles.get(key), self._random.random()
            self._version += 1
            version = self._version
            if handle is None:
                self._note("b", key, version)
                handles[key] = await objects.create(payload(key, version))
            elif chance < 0.3:
                version = 0
                self._note("b", key, 0)
                del handles[key]
                await objects.delete(handle)
            elif chance < 0.5:
                check_payload(await objects.read(handle))
                continue
            else:
                self._note("b", key, version)
                await objects.update(handle, payload(key, version))
            self._note("a", key, version, time.monotonic())
            await asyncio.sleep(0.01)


async def main() -> None:
    directory, store, seed, journal = sys.argv[1:]
    Path(journal).touch()
    writer = Writer(directory, store, int(seed), Path(journal))
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, writer.stop)
    loop.add_signal_handler(signal.SIGUSR2, writer.cut)
    await writer.run()


if __name__ == "__main__":
    asyncio.run(main())
