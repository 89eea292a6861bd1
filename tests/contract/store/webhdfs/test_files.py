"""Files on objects (R19): answered operations are durable, a crash at any point leaves no half operation and no garbage."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from spark_jms.store.errors import (
    FencedError,
    ResourceAllocationException,
    SingleCopyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreVersionError,
)
from spark_jms.store.regions.client.object_journal import BATCH, DATA, MAGIC_BYTES, ROOT
from spark_jms.store.regions.client.objects import MemoryObjects, Objects
from spark_jms.store.webhdfs import errors
from spark_jms.store.webhdfs.blocks import FilesOptions
from spark_jms.store.webhdfs.files import ContentWriter, Files
from tests.harness.stores.faulty_objects import Crashing, Refusing

SMALL = FilesOptions(block_bytes=64, inline_bytes=16, merge_bytes=32, refused_retry_ms=0, refused_retries=3)
OBJECT_BYTES = 4096


def clock() -> Callable[[], int]:
    ticks = count(1_000)
    return lambda: next(ticks)


async def opened(objects: Objects | None = None, options: FilesOptions = SMALL) -> Files:
    return await Files.open(objects or MemoryObjects(max_object_bytes=OBJECT_BYTES), clock(), options)


async def written(writer: ContentWriter, data: bytes) -> None:
    try:
        await writer.write(data)
        await writer.close()
    finally:
        await writer.abort()


async def put(files: Files, path: str, data: bytes, overwrite: bool = False) -> None:
    await written(await files.create(path, overwrite), data)


async def add(files: Files, path: str, data: bytes) -> None:
    await written(await files.append(path), data)


async def get(files: Files, path: str) -> bytes:
    return await (await files.read(path)).all()


async def everything(files: Files) -> dict[str, bytes | None]:
    found: dict[str, bytes | None] = {}
    todo = ["/"]
    while todo:
        path = todo.pop()
        for status in (await files.listing(path))[0]:
            child = path.rstrip("/") + "/" + status.path_suffix
            found[child] = None if status.is_directory else await get(files, child)
            if status.is_directory:
                todo.append(child)
    return found


Step = tuple[Callable[[Files], Awaitable[object]], Callable[[dict[str, bytes | None]], None]]
LONG = bytes(range(256)) * 2


def _pop(model: dict[str, bytes | None], source: str, target: str) -> None:
    model[target] = model.pop(source)


STORY: list[Step] = [
    (lambda f: f.mkdirs("/a/b"), lambda m: m.update({"/a": None, "/a/b": None})),
    (lambda f: put(f, "/a/one", b"small"), lambda m: m.update({"/a/one": b"small"})),
    (lambda f: put(f, "/a/long", LONG), lambda m: m.update({"/a/long": LONG})),
    (lambda f: f.rename_strict("/a/one", "/a/b/one"), lambda m: _pop(m, "/a/one", "/a/b/one")),
    (lambda f: add(f, "/a/long", b"x" * 10), lambda m: m.update({"/a/long": LONG + b"x" * 10})),
    (lambda f: add(f, "/a/long", b"y" * 90), lambda m: m.update({"/a/long": LONG + b"x" * 10 + b"y" * 90})),
    (lambda f: put(f, "/a/b/one", LONG[:100], overwrite=True), lambda m: m.update({"/a/b/one": LONG[:100]})),
    (lambda f: f.truncate("/a/long", 70), lambda m: m.update({"/a/long": LONG[:70]})),
    (lambda f: add(f, "/a/long", b"z" * 20), lambda m: m.update({"/a/long": LONG[:70] + b"z" * 20})),
    (lambda f: put(f, "/a/tail", b"t" * 40), lambda m: m.update({"/a/tail": b"t" * 40})),
    (
        lambda f: f.concat("/a/long", ["/a/tail"]),
        lambda m: m.update({"/a/long": LONG[:70] + b"z" * 20 + (m.pop("/a/tail") or b"")}),
    ),
    (lambda f: put(f, "/a/new", b"n" * 30), lambda m: m.update({"/a/new": b"n" * 30})),
    (lambda f: f.rename_strict("/a/new", "/a/b/one", True), lambda m: _pop(m, "/a/new", "/a/b/one")),
    (lambda f: f.set_attributes("/a/b/one", permission=0o600), lambda m: None),
    (lambda f: f.delete("/a/b", True), lambda m: [m.pop(p) for p in ("/a/b", "/a/b/one")] and None),  # type: ignore[func-returns-value]
    (lambda f: put(f, "/end", b"e" * 200), lambda m: m.update({"/end": b"e" * 200})),
]


async def story(objects: Objects, options: FilesOptions) -> tuple[list[dict[str, bytes | None]], bool]:
    """Run the story. Returns the states that a recovery may find: the last acknowledged one, and after a crash the next."""
    model: dict[str, bytes | None] = {}
    try:
        files = await opened(objects, options)
    except StoreError:
        return [model], False
    for act, change in STORY:
        before = dict(model)
        change(model)
        try:
            await act(files)
        except errors.RetriableError:
            assert files.failure is not None
            await files.close()
            return [before, model], False
    await files.close()
    return [model], True


async def crash_everywhere(options: FilesOptions, done: bool) -> int:
    for fail_at in range(1, 1000):
        inner = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        crashing = Crashing(inner, fail_at, done)
        allowed, complete = await story(crashing, options)
        for _ in range(2):  # the changes of one recovery must not disturb the next
            again = MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=inner.contents)
            files = await opened(again, options)
            found = await everything(files)
            assert found in allowed, f"crash at change {fail_at}: {found}"
            await put(files, "/probe", b"p" * 100, overwrite=True)
            await files.delete("/probe")
            await files.close()
            unreferenced = [
                data
                for handle, data in again.contents.items()
                if data[:MAGIC_BYTES] == DATA and handle not in files.tree.handles()
            ]
            assert not unreferenced, "garbage stayed"
        if complete and crashing.changes < fail_at:
            return fail_at
    raise AssertionError("the story never ended")


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("snapshot_batches", [1000, 3])
def test_crash_at_every_change_leaves_old_or_new_state(snapshot_batches: int, done: bool) -> None:
    """R19: the k-th object change fails for every k, done or not done; recovery finds the old or the new state."""
    options = FilesOptions(
        block_bytes=64, inline_bytes=16, merge_bytes=32, refused_retry_ms=0, snapshot_batches=snapshot_batches
    )
    assert asyncio.run(crash_everywhere(options, done)) > 30


def test_recovery_survives_its_own_crash() -> None:
    """R19: a recovery may crash at each of its deletions."""

    async def run() -> None:
        for fail_at in range(1, 40):
            inner = MemoryObjects(max_object_bytes=OBJECT_BYTES)
            files = await opened(inner)
            await put(files, "/kept", LONG)
            for _ in range(5):
                await inner.create(DATA + b"left by a crash")
            crashing = Crashing(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=inner.contents), fail_at, True)
            try:
                files = await opened(crashing)
            except StoreError:
                files = await opened(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=inner.contents))
            else:
                assert files.statistics().garbage_swept == 5  # the blocks
                assert fail_at > 5
                return
            assert await get(files, "/kept") == LONG
        raise AssertionError

    asyncio.run(run())


def test_concurrent_changes_share_a_journal_write() -> None:
    """R19: edits that arrive while the journal is being written share its next write, and are answered when it is durable."""

    async def run() -> None:
        inner = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        files = await opened(Crashing(inner, 10**9, False))
        await asyncio.gather(*(files.mkdirs(f"/d{n}") for n in range(200)))
        statistics = files.statistics()
        assert statistics.mutation_count == 200
        assert statistics.journal_write_count <= 20
        again = await opened(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=inner.contents))
        assert len(await everything(again)) == 200

    asyncio.run(run())


def test_journal_writes_every_edit() -> None:
    """R19: an edit that arrives at the moment in which the journal's task ends is written, too (once it was not, and a
    checkpoint stood still for a minute)."""

    async def worker(files: Files, n: int) -> None:
        for m in range(200):
            await put(files, f"/{n}/{m % 7}", b"x" * (m % 40), overwrite=True)
            for _ in range((n + m) % 5):  # so that every distance between two edits occurs
                await asyncio.sleep(0)

    async def run() -> None:
        files = await opened(Crashing(MemoryObjects(max_object_bytes=OBJECT_BYTES), 10**9, False))
        await asyncio.wait_for(asyncio.gather(*(worker(files, n) for n in range(4))), 30)
        assert len(await everything(files)) == 4 + 4 * 7

    asyncio.run(run())


def test_answers_wait_until_they_are_durable() -> None:
    """R19: an answer or refusal waits for the edits it has seen; if their write fails, it fails."""

    async def run() -> None:
        inner = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        crashing = Crashing(inner, 10**9, False)
        files = await opened(crashing)
        crashing.fail_at = crashing.changes + 1
        made = asyncio.ensure_future(files.mkdirs("/d"))
        await asyncio.sleep(0)
        looks = [files.status("/d"), files.rename_strict("/x", "/d"), files.listing("/"), made]
        results = await asyncio.gather(*looks, return_exceptions=True)
        assert all(isinstance(result, errors.RetriableError) for result in results), results

    asyncio.run(run())


def test_concurrent_renames_have_one_winner() -> None:
    """R19: of twenty drivers that rename to one name at the same time, one wins."""

    async def run() -> None:
        files = await opened()
        for n in range(20):
            await put(files, f"/.{n}.tmp", b"%d" % n)
        results = await asyncio.gather(
            *(files.rename_strict(f"/.{n}.tmp", "/1") for n in range(20)), return_exceptions=True
        )
        assert sum(result is None for result in results) == 1
        assert sum(isinstance(result, errors.FileExistsAlreadyError) for result in results) == 19
        assert await get(files, "/1") == b"%d" % results.index(None)

    asyncio.run(run())


def test_file_has_one_writer() -> None:
    """R19: overwriting takes the file from its writer; an abandoned writer leaves nothing."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects)
        first = await files.create("/f")
        assert (await files.status("/f")).length == 0
        await first.write(LONG)
        with pytest.raises(errors.FileExistsAlreadyError):
            await files.create("/f")
        with pytest.raises(errors.BeingCreatedError):
            await files.append("/f")
        with pytest.raises(errors.BeingCreatedError):
            await files.rename_strict("/f", "/g")
        second = await files.create("/f", overwrite=True)
        await second.write(b"second")
        with pytest.raises(errors.LeaseExpiredError):
            await first.close()
        await second.close()
        assert await get(files, "/f") == b"second"

        third = await files.create("/f", overwrite=True)
        await third.write(LONG)
        assert await get(files, "/f") == b"second", "the old content stays until the new one is whole"
        await third.abort()
        assert await get(files, "/f") == b"second"

        fourth = await files.append("/f")
        with pytest.raises(errors.BeingCreatedError):
            await files.truncate("/f", 1)
        await fourth.write(b"+")
        await files.rename_strict("/f", "/moved")
        await fourth.close()
        assert await get(files, "/moved") == b"second+"

        fifth = await files.create("/dir/gone")
        await files.delete("/dir", recursive=True)
        with pytest.raises(errors.LeaseExpiredError):
            await fifth.close()
        abandoned = await files.create("/abandoned")
        await abandoned.abort()
        with pytest.raises(errors.NoSuchFileError):
            await files.status("/abandoned")
        assert files.statistics().open_writers == 0
        await files.close()
        assert not [data for data in objects.contents.values() if data[:MAGIC_BYTES] == DATA]

    asyncio.run(run())


def test_reader_keeps_its_content() -> None:
    """R19: a reader reads a deleted file to its end; then its blocks are deleted."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects)
        await put(files, "/f", LONG)
        reader = await files.read("/f", 100, 300)
        await files.delete("/f")
        assert await reader.all() == LONG[100:400]
        await files.close()
        assert not [data for data in objects.contents.values() if data[:MAGIC_BYTES] == DATA]

    asyncio.run(run())


def test_overloaded_store_refuses_growth() -> None:
    """R13: new files, directories and contents are refused by name, even in the middle of a file; everything else works."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects)
        await put(files, "/f", LONG)
        await put(files, "/old", b"x")
        begun = await files.create("/begun")
        objects.overload = ResourceAllocationException("SpaceOverloadYellowPercent is 80")
        with pytest.raises(errors.NoSpaceError, match="YellowPercent is 80; files can be deleted, not made"):
            await written(begun, LONG)
        for refused in (files.create("/g"), files.create("/f", True), files.append("/f"), files.mkdirs("/d")):
            with pytest.raises(errors.NoSpaceError):
                await refused
        assert await get(files, "/f") == LONG
        await files.rename("/f", "/moved")
        await files.delete("/old")
        assert await everything(files) == {"/moved": LONG}
        objects.overload = None
        await put(files, "/g", LONG)
        assert files.failure is None

    asyncio.run(run())


def test_full_store_can_be_emptied() -> None:
    """R13, R19: a full store refuses growth by name and still deletes."""

    async def run() -> None:
        objects = Refusing(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects)
        await put(files, "/f", LONG)
        objects.refusals = 1  # the next block
        with pytest.raises(errors.NoSpaceError):
            await put(files, "/g", LONG)
        objects.refusals = 1  # the journal uses up the reserve
        await files.delete("/f")
        objects.refusals = 1
        with pytest.raises(errors.NoSpaceError):
            await files.mkdirs("/more")
        await files.mkdirs("/more")
        assert await everything(files) == {"/more": None}
        assert files.failure is None

    asyncio.run(run())


def test_refused_journal_write_is_repeated() -> None:
    """R19: with one copy left and a policy that refuses, the journal repeats its write within a bound, then fails by name."""

    async def run() -> None:
        objects = Refusing(max_object_bytes=OBJECT_BYTES)
        objects.error = SingleCopyError("planned")
        files = await opened(objects)
        objects.refusals = SMALL.refused_retries
        await files.mkdirs("/waited")
        objects.refusals = SMALL.refused_retries + 1
        with pytest.raises(errors.RetriableError):
            await files.mkdirs("/gave up")
        assert isinstance(files.failure, SingleCopyError)

    asyncio.run(run())


def test_fenced_namespace_refuses_everything() -> None:
    """R19: once the instance was replaced, every operation answers RetriableException."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects)
        objects.failure = FencedError("planned")
        with pytest.raises(errors.RetriableError):
            await files.mkdirs("/d")
        with pytest.raises(errors.RetriableError):
            await files.status("/")

    asyncio.run(run())


def test_damage_is_refused_by_name() -> None:
    """R16, R19: a foreign root, a newer version, a missing block and a broken batch are refused, and nothing is changed."""

    async def run() -> None:
        contents: dict[int, bytes] = {}
        files = await opened(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=contents))
        await put(files, "/f", LONG)
        block = next(handle for handle, data in contents.items() if data[:MAGIC_BYTES] == DATA)
        batch = next(handle for handle, data in contents.items() if data[:MAGIC_BYTES] == BATCH)
        for changed, error in [
            ({1: b"????"}, StoreCorruptError),
            ({1: ROOT + b"\x00\x00\x00\x07\x96\x63\xa0\xa0\x00\x90\x00"}, StoreVersionError),
            ({batch: BATCH + b"???"}, StoreCorruptError),
            ({block: None}, StoreCorruptError),
        ]:
            damaged = {h: d for h, d in {**contents, **changed}.items() if d is not None}
            before = dict(damaged)
            with pytest.raises(error):
                await opened(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=damaged))
            assert damaged == before

    asyncio.run(run())


def test_writer_holds_one_block() -> None:
    """R19: a writer keeps less than one block in memory, however long the file is."""

    async def run() -> None:
        files = await opened()
        writer = await files.create("/large")
        for _ in range(30):
            await writer.write(LONG)
            assert len(writer._buffer) < 64
        await writer.close()
        assert await get(files, "/large") == LONG * 30
        assert await (await files.read("/large", 513, 7)).all() == (LONG * 30)[513:520]

    asyncio.run(run())


def test_small_contents_have_a_budget() -> None:
    """R19: small contents are kept in the journal while they fit their budget, then in blocks."""

    async def run() -> None:
        objects = MemoryObjects(max_object_bytes=OBJECT_BYTES)
        options = FilesOptions(block_bytes=64, inline_bytes=16, inline_budget_bytes=100, snapshot_batches=5)
        files = await opened(objects, options)
        for n in range(20):
            await put(files, f"/{n}", b"0123456789")
        assert files.statistics().inline_bytes == 100
        assert files.statistics().snapshot_count > 2
        before = await everything(files)
        await files.close()
        again = await opened(MemoryObjects(max_object_bytes=OBJECT_BYTES, contents=objects.contents), options)
        assert await everything(again) == before
        assert again.statistics().inline_bytes == 100

    asyncio.run(run())


class RefusingUpdates(MemoryObjects):
    """Refuses the root of a new snapshot; meanwhile other requests are made."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    async def update(self, handle: int, data: bytes) -> None:
        self.meanwhile()
        await asyncio.sleep(0)
        raise StoreFullError("planned")


def test_refused_snapshot_keeps_the_namespace(caplog: pytest.LogCaptureFixture) -> None:
    """R13, R19: when the store has no room for a snapshot the journal grows on; edits that the snapshot would have made
    durable are written to the journal."""

    async def run() -> None:
        objects = RefusingUpdates(max_object_bytes=OBJECT_BYTES)
        files = await opened(objects, FilesOptions(block_bytes=64, inline_bytes=16, snapshot_batches=3))
        made: list[asyncio.Task[None]] = []
        objects.meanwhile = lambda: made.append(asyncio.ensure_future(files.mkdirs(f"/during{len(made)}")))
        for n in range(10):
            await files.mkdirs(f"/{n}")
        await asyncio.gather(*made)
        assert made
        assert files.failure is None
        assert files.statistics().snapshot_count == 0
        await files.close()
        names = {f"/{n}" for n in range(10)} | {f"/during{n}" for n in range(len(made))}
        assert set(await everything(await opened(MemoryObjects(contents=objects.contents)))) == names

    asyncio.run(run())
    assert "cannot write a snapshot, the journal keeps growing" in caplog.text
