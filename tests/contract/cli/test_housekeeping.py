"""C14: `jmsq housekeep`, once and until Ctrl-C."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest

from spark_jms.admin.services import Rounds
from spark_jms.claims.upkeep import views
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import Jmsq


def test_housekeeping_once(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    for i in range(9):
        jmsq("send", "invoices", "--text", str(i))
    jmsq("receive", "invoices")
    (done,) = js("housekeep", "invoices", "--once")
    assert (done["busy"], done["purged_messages"], done["compacted_files"]) == (False, 1, 8)
    assert [d["destination"] for d in js("housekeep", "--once")] == ["invoices", "orders", "prices"]
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        other = Rounds(opened, store, clean_up=False)
        other.run(["invoices"])
        busy = js("housekeep", "invoices", "--once")[0]
        assert busy["busy"] is True
        assert busy["holder"].startswith(f"process {os.getpid()} of {socket.gethostname()}, since 2")
        shown = " ".join(jmsq("housekeep", "invoices", "--once").stdout.split())
        assert f"another process does it: process {os.getpid()} of" in shown
        other.close()


def test_interrupt_exits_with_130(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "run", interrupted)
    result = jmsq("housekeep", code=130)
    assert result.stderr.strip().splitlines() == ["jmsq: interrupted"]
    error = json.loads(jmsq("housekeep", "--json", code=130).stderr)["error"]
    assert error["type"] == "Interrupted"
