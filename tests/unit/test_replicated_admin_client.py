"""An administrator's attachment (R4): what it does while it waits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from store.errors import ShutdownRefusedError
from store.replicated import admin_client
from store.replicated.admin_client import DaemonAdmin
from store.replicated.admin_port import DaemonInfo
from store.replicated.global_directory import GlobalDirectory


def test_a_shutdown_that_is_given_up_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R4: the daemon found that it has to stay; whoever waits for its end is told, by name."""
    monkeypatch.setattr(admin_client, "GIVEN_UP_S", 0.0)
    admin = DaemonAdmin.__new__(DaemonAdmin)
    admin._global, admin.local_index = GlobalDirectory(str(tmp_path)), 0
    asked: list[Any] = []
    monkeypatch.setattr(admin, "_ask", lambda make, shape=None: asked.append(make(1)))
    monkeypatch.setattr(admin._global, "is_running", lambda index, incarnation=None: True)
    leaving = [True, True, False]

    def daemons() -> list[DaemonInfo]:
        return [DaemonInfo(1, "127.0.0.1", 7100, 7100, 1 << 30, up=True, draining=leaving.pop(0))]

    monkeypatch.setattr(admin, "daemons", daemons)
    with pytest.raises(ShutdownRefusedError, match="daemon 1 stays after all"):
        admin.shutdown([1], force=False)
    assert leaving == []
    assert len(asked) == 1
