"""What a namespace answers from memory needs a proof that it is still open here (R8, R19)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from spark_jms.store.errors import FencedError, RegionUnavailableError, StoreError
from spark_jms.store.processes import LEASE_MS, ReadLease
from spark_jms.store.regions.client.objects import MemoryObjects
from spark_jms.store.webhdfs.blocks import ReadProof
from spark_jms.store.webhdfs.errors import NoSuchFileError, RetriableError
from spark_jms.store.webhdfs.files import Files


class Owner:
    """Confirms, unless `error` is set. `count`: how often it was asked."""

    def __init__(self) -> None:
        self.error: StoreError | None = None
        self.count = 0
        self.now_ms = 0.0
        self.answer_ms = 0.0  # how long its answer takes

    async def prove(self) -> None:
        self.count += 1
        await asyncio.sleep(0)
        self.now_ms += self.answer_ms
        if self.error is not None:
            raise self.error


def with_files(test: Callable[[Files, Owner], Coroutine[None, None, None]]) -> None:
    async def run() -> None:
        owner = Owner()
        files = await Files.open(MemoryObjects(max_object_bytes=64 * 1024), lambda: 7, prove=owner.prove)
        files._proof = ReadProof(owner.prove, files._guard, ReadLease(lambda: owner.now_ms))
        await files.mkdirs("/d")
        await test(files, owner)
        await files.close()

    asyncio.run(run())


def test_reads_share_a_proof_for_as_long_as_it_holds() -> None:
    """R8: of 200 ms, counted from the question."""

    async def test(files: Files, owner: Owner) -> None:
        owner.now_ms += LEASE_MS
        before = owner.count
        await asyncio.gather(*(files.status("/d") for _ in range(20)))
        assert owner.count == before + 1
        owner.now_ms += LEASE_MS - 1
        await files.listing("/")
        assert owner.count == before + 1
        owner.now_ms += 1
        await files.listing("/")
        assert owner.count == before + 2
        owner.now_ms, owner.answer_ms = owner.now_ms + LEASE_MS, LEASE_MS
        await files.listing("/")
        await files.listing("/")
        assert owner.count == before + 4, "no lease is left when the answer comes"

    with_files(test)


def test_namespace_that_another_process_has_answers_nothing() -> None:
    """R8: neither what it has in memory, nor that a file does not exist; it ends."""

    async def test(files: Files, owner: Owner) -> None:
        with pytest.raises(NoSuchFileError):
            await files.status("/missing")
        owner.now_ms += LEASE_MS
        owner.error = FencedError("store webhdfs: another client opened it")
        for look in (files.status("/missing"), files.status("/d"), files.read("/d")):
            with pytest.raises(RetriableError, match="lost its store"):
                await look
        assert isinstance(files.failure, FencedError)

    with_files(test)


def test_namespace_that_cannot_be_proved_now_asks_to_be_asked_again() -> None:
    """R8: and answers once it can."""

    async def test(files: Files, owner: Owner) -> None:
        owner.now_ms += LEASE_MS
        owner.error = RegionUnavailableError("its daemon cannot tell")
        with pytest.raises(RetriableError, match="cannot tell whether it still serves"):
            await files.status("/d")
        assert files.failure is None
        owner.error = None
        assert (await files.status("/d")).length == 0

    with_files(test)
