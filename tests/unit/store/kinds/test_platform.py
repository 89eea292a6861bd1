"""The replicated store refuses a platform that it does not know, by name (R16)."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from spark_jms.store import open_store
from spark_jms.store.errors import UnsupportedPlatformError
from spark_jms.store.kinds import daemon


@pytest.mark.parametrize("platform", ["darwin", "win32", "aix"])
def test_unsupported_platform_is_refused_by_name(
    tmp_path: Path,
    platform: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """R16: a store and a daemon, with an error in the log; a file store works there."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", platform)
        with pytest.raises(UnsupportedPlatformError, match=f"needs Linux, this is {platform}"):
            open_store(f"replicated://{tmp_path}?store=s")
        assert daemon.main(["-dir", str(tmp_path)]) == 1
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert [text.partition(".")[0] for text in errors] == [f"the replicated store needs Linux, this is {platform}"] * 2
    assert "UnsupportedPlatformError" in capsys.readouterr().err
