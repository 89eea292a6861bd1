"""The secrets that a daemon knows of the others, while the Global Directory hangs, is away, or answers (R10, R17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_jms.store.errors import DaemonUnavailableError, DirectoryUnavailableError
from spark_jms.store.regions.daemon import directory_workers
from spark_jms.store.regions.daemon.directory_workers import PeerSecrets
from spark_jms.store.regions.directory.global_directory import GlobalDirectory

Call = Callable[[], "bytes | None"]


class HandWorkers:
    """Answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Call, asyncio.Future[bytes | None]]] = []

    def run(self, call: Call) -> asyncio.Future[bytes | None]:
        future: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.asked.append((call, future))
        return future

    def answer(self, value: bytes | Exception | None) -> None:
        _, future = self.asked.pop(0)
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory_workers, "PATIENCE_S", 0.0)


def secrets_of(path: Path) -> tuple[PeerSecrets, HandWorkers]:
    workers = HandWorkers()
    return PeerSecrets(GlobalDirectory(str(path)), "", workers.run), workers


async def asked(secrets: PeerSecrets, workers: HandWorkers, value: bytes | Exception | None) -> bytes | None:
    looking = asyncio.ensure_future(secrets.of(1))
    await asyncio.sleep(0)
    workers.answer(value)
    return await looking


def test_secret_that_was_read_serves_while_the_directory_hangs(tmp_path: Path) -> None:
    """R10: at once, as often as it is asked for, with one question under way; the answer counts once it comes."""

    async def run() -> None:
        secrets, workers = secrets_of(tmp_path)
        assert await asked(secrets, workers, b"old") == b"old"
        assert [await secrets.of(1) for _ in range(3)] == [b"old"] * 3
        assert len(workers.asked) == 1
        workers.answer(b"new")
        assert await secrets.of(1) == b"new"
        assert await secrets.of(1) == b"new"

    asyncio.run(run())


@pytest.mark.parametrize("error", [DirectoryUnavailableError("away"), DaemonUnavailableError("none")])
def test_secret_that_was_read_serves_while_the_directory_is_away(tmp_path: Path, error: Exception) -> None:
    """R10."""

    async def run() -> None:
        secrets, workers = secrets_of(tmp_path)
        with pytest.raises(type(error)):
            await asked(secrets, workers, error)
        assert await asked(secrets, workers, b"old") == b"old"
        assert await secrets.of(1) == b"old"
        workers.answer(error)
        assert await secrets.of(1) == b"old"

    asyncio.run(run())


def test_daemon_that_does_not_run_is_not_dialed(tmp_path: Path) -> None:
    """R10: once the directory has said so."""

    async def run() -> None:
        secrets, workers = secrets_of(tmp_path)
        assert await asked(secrets, workers, None) is None
        assert await asked(secrets, workers, b"secret") == b"secret"
        assert await secrets.of(1) == b"secret"
        workers.answer(None)
        assert await secrets.of(1) is None

    asyncio.run(run())
