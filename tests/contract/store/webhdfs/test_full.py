"""A full namespace (R13, R19): every file that can be read can be deleted, and then there is room for new ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
from itertools import count

from hypothesis import given, settings
from hypothesis import strategies as st

from spark_jms.store.errors import StoreError
from spark_jms.store.webhdfs import errors
from spark_jms.store.webhdfs.blocks import FilesOptions
from spark_jms.store.webhdfs.files import Files
from tests.harness.stores.faulty_objects import FiniteObjects

OBJECT_BYTES = 1024
OPTIONS = FilesOptions(
    block_bytes=500, inline_bytes=100, merge_bytes=50, refused_retry_ms=0, refused_retries=3, snapshot_batches=30
)


async def opened(objects: FiniteObjects) -> Files:
    ticks = count(1_700_000_000_000_000)
    return await Files.open(objects, lambda: next(ticks), OPTIONS)


async def put(files: Files, path: str, data: bytes) -> None:
    writer = await files.create(path, True)
    try:
        await writer.write(data)
        await writer.close()
    finally:
        await writer.abort()


async def act(files: Files, rng: random.Random) -> None:
    name = f"/d{rng.randrange(5)}/é{rng.randrange(30)}"
    kind = rng.randrange(10)
    if kind == 0:
        await files.delete(name)
    elif kind == 1:
        await files.mkdirs("/" + "/".join("x" * rng.randrange(1, 40) for _ in range(rng.randrange(1, 8))))
    elif kind == 2:
        await files.rename(name, f"/d{rng.randrange(5)}/{'r' * rng.randrange(1, 60)}")
    elif kind == 3:
        await files.set_xattr(name, f"user.{rng.randrange(4)}", bytes(rng.randrange(200)), create=True, replace=True)
    elif kind == 4:
        await files.set_attributes(name, permission=rng.randrange(0o777), modified_us=rng.randrange(2**60))
    else:
        await put(files, name, bytes(rng.choice([0, 50, 90, 600, 3000])))


async def live(files: Files, rng: random.Random, steps: int) -> int:
    """Random operations, several at once; how many of them the full store refused."""
    refused = 0
    for _ in range(steps):
        for result in await asyncio.gather(*(act(files, rng) for _ in range(3)), return_exceptions=True):
            if isinstance(result, errors.NoSpaceError):
                refused += 1
            elif isinstance(result, errors.RetriableError) and files.failure is not None:
                raise files.failure
            elif isinstance(result, BaseException) and not isinstance(result, errors.RemoteError):
                raise result
    return refused


async def names(files: Files) -> list[str]:
    """Of all files, and then of all directories, the deepest first."""
    found: list[str] = []
    directories = ["/"]
    for directory in directories:
        for status in (await files.listing(directory))[0]:
            path = f"{directory.rstrip('/')}/{status.path_suffix}"
            (directories if status.is_directory else found).append(path)
    return found + directories[:0:-1]


async def empty(files: Files) -> None:
    for name in await names(files):
        assert await files.delete(name)
    await put(files, "/new", bytes(700))
    await files.delete("/new")
    assert files.failure is None


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.lists(st.tuples(st.integers(1, 300), st.booleans()), max_size=2))
def test_full_namespace_can_be_emptied(seed: int, regions: int, crashes: list[tuple[int, bool]]) -> None:
    """R13, R19: after any history in a store with a hard limit, with crashes between any two object operations, every
    deletion succeeds, then a new file does, and again after another opening."""

    async def run() -> None:
        rng = random.Random(seed)
        objects = FiniteObjects(72_000 // regions, regions, OBJECT_BYTES)
        for crash_at, done in crashes:
            objects = objects.restart(crash_at, done)
            with contextlib.suppress(StoreError):
                await live(await opened(objects), rng, 40)
        objects = objects.restart()
        files = await opened(objects)
        await live(files, rng, 100)
        if rng.random() < 0.5:
            await files.close()
            files = await opened(objects)
        await empty(files)
        await files.close()
        files = await opened(objects)
        await live(files, rng, 20)
        await empty(files)
        await files.close()

    asyncio.run(run())


def test_full_namespace_refuses_growth() -> None:
    """R13: the history of the test above does fill the store."""

    async def run() -> None:
        files = await opened(FiniteObjects(72_000, 1, OBJECT_BYTES))
        assert await live(files, random.Random(1), 150) > 20
        await empty(files)
        await files.close()

    asyncio.run(run())
