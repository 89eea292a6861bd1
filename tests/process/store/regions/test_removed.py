"""The regions of a domain's store are removed while the domain runs (R6, R18)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from spark_jms import apply, connect
from spark_jms.client import Context
from spark_jms.store.engine.server import Server
from spark_jms.store.errors import RegionLostError, StoreError
from spark_jms.store.regions.admin.api import Admin
from spark_jms.store.replicated.store import RegionEngineFinder, parse_replicated
from spark_jms.testing.domain import wait_until
from tests.harness.stores.regions_cluster import Make

LIMIT_S = 30.0


def received(context: Context) -> list[str]:
    """All that is not acknowledged."""
    with context.consumer("orders") as consumer:
        found = []
        while message := consumer.receive(timeout=LIMIT_S if not found else 0.5):
            found.append(message.text)
        return found


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.ERROR]


def test_running_domain_fails_until_its_regions_are_removed_again(
    make_daemons: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R6, R8, R18: by force. No acknowledged message is delivered again before an administrator has decided, whoever asks."""
    daemons, root = make_daemons(2), str(tmp_path / "domain")
    apply(root, {"store": daemons.uri("fast"), "destinations": {"orders": {"kind": "queue"}}})
    with connect(root, housekeeping=False) as context, Admin(str(daemons.path), 1) as admin:
        context.producer("orders").send_many([{"text": str(number)} for number in range(5)])
        with context.consumer("orders", prefetch=1) as consumer:
            for _ in range(3):
                message = consumer.receive(timeout=LIMIT_S)
                assert message is not None
                message.acknowledge()
        assert not errors(caplog)
        removal = admin.remove_regions("fast*", force=True)
        assert (removal.removed, removal.lost) == (("fast.000",), ("fast.000",))

        def is_lost() -> bool:
            with pytest.raises(StoreError) as caught:
                received(context)
            return isinstance(caught.value, RegionLostError)

        wait_until(is_lost, LIMIT_S)
        for _ in range(3):
            assert is_lost()
        with (
            connect(root, housekeeping=False) as other,
            pytest.raises(RegionLostError, match=r"removed by force while"),
        ):
            received(other)
        assert [region.status for region in admin.regions("fast*")] == ["LOST"]
        assert any(
            "store fast cannot be opened: region fast.000 was removed by force" in text for text in errors(caplog)
        )
        wait_until(lambda: daemons.output().count("region fast.000 is LOST: it was removed by force") == 2, LIMIT_S)
        lock_file = daemons.path / "regions" / "fast.000.RGN"
        assert lock_file.exists()
        assert admin.remove_regions("fast*").lost == ()
        wait_until(lambda: not lock_file.exists(), LIMIT_S, "rmr removes the lock file of the region")
        assert received(context) == [str(number) for number in range(5)], "the store has begun again"


def test_store_that_is_removed_while_it_is_closed_begins_again_with_an_error(
    make_daemons: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """R6: a process that has used it says so; one that comes later cannot know."""
    daemons = make_daemons(2)
    finder = RegionEngineFinder(parse_replicated(daemons.uri("fast")), session_timeout_ms=5_000.0)
    try:
        with Admin(str(daemons.path), 0) as admin:
            server = finder.find()
            assert isinstance(server, Server)
            server.close()
            wait_until(lambda: [region.status for region in admin.regions("fast*")] == ["CLOSED"], LIMIT_S)
            assert admin.remove_regions("fast*").removed == ("fast.000",)
            assert not errors(caplog)
            assert isinstance(finder.find(), Server)
            assert [text for text in errors(caplog) if "store fast begins again, empty" in text]
    finally:
        finder.close()
