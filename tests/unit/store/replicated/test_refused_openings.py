"""Why a replicated store does not open: in the log as an error, and in the error of those who wait (R5, R16, R18, R12)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_jms.store.engine.backend import EngineBackend
from spark_jms.store.errors import (
    DaemonUnavailableError,
    MemoryLimitError,
    NoLocalDaemonError,
    RegionOpenError,
    StoreBusyError,
    StoreError,
    StoreVersionError,
)
from spark_jms.store.replicated.store import RegionEngineFinder, parse_replicated


def finder_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError) -> RegionEngineFinder:
    """One whose store does not open for this reason."""
    (tmp_path / "rs_daemons.cfg").write_text("192.0.2.1 7100 1 64M\n")

    def start(self: RegionEngineFinder) -> None:
        raise error

    monkeypatch.setattr(RegionEngineFinder, "_start_engine", start)
    return RegionEngineFinder(parse_replicated(f"replicated://{tmp_path}?store=s"), session_timeout_ms=1_000)


@pytest.mark.parametrize(
    "error",
    [
        NoLocalDaemonError("none of 1 daemons belongs to this machine"),
        StoreVersionError("region s.000", 9, 1),
        MemoryLimitError("region s.000 needs 64 bytes on daemon 0"),
    ],
)
def test_reason_is_logged_as_an_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: StoreError
) -> None:
    """R18, R16, R12: no local daemon, an incompatible version, no memory."""
    finder = finder_of(tmp_path, monkeypatch, error)
    for _ in range(3):
        with pytest.raises(type(error)):
            finder.find()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == [f"store s cannot be opened: {error}"]


@pytest.mark.parametrize("error", [DaemonUnavailableError("daemon 0 ended"), RegionOpenError("region s.000, by x")])
def test_error_of_those_who_wait_has_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: StoreError
) -> None:
    """R18: a process that has used the store waits for the engine; at its limit the StoreBusyError says what it waited for."""
    finder = finder_of(tmp_path, monkeypatch, error)
    finder._reached_before = True
    with pytest.raises(StoreBusyError, match=error.detail()):
        EngineBackend(finder, session_timeout_ms=1_000, limit_ms=30)
