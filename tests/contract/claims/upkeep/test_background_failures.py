"""A failure of background work is no failure of a caller; damaged files are skipped and named (C13, C20, C14)."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.claims.upkeep.housekeeping import Housekeeper, published_failures
from spark_jms.cli.__main__ import cli
from spark_jms.client.context import destinations as client_destinations
from spark_jms.errors import UnreadableTableError
from spark_jms.log.upkeep import housekeeping
from spark_jms.log.upkeep.purge import purge
from spark_jms.testing import memory_domain, wait_until
from spark_jms.testing.inside import domain_of, receiver_of, records_of, subscriber_of

DAMAGE = b"PAR1" + bytes(200) + b"PAR1"


def send(context: Any, count: int) -> None:
    producer = context.producer("orders")
    for n in range(count):
        producer.send(text=str(n))


def active(context: Any) -> list[Any]:
    return list(domain_of(context).log("orders").refresh().member_files(0).files)


def drop_pauses(housekeeper: Housekeeper) -> None:
    housekeeper.rounds.monitor._clock_ms = lambda: 2**62


def test_compaction_skips_and_names_a_damaged_file() -> None:
    """C13: the files around it are compacted, it is tried again after a pause, and a restored file ends the failure."""
    with (
        memory_domain(orders={"kind": "queue", "retention_ms": 1}) as root,
        connect(root, housekeeping=False) as context,
    ):
        send(context, 30)
        bad = active(context)[10]
        path = Path(root) / "orders" / bad.path
        whole = path.read_bytes()
        path.write_bytes(DAMAGE)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        for _ in range(3):
            assert housekeeper.run()
        assert [f.rows for f in active(context)] == [10, 1, 19]
        (failure,) = housekeeper.health.failures.values()
        assert failure.what == f"reading data file orders/{bad.path}"
        assert failure.count == 1
        assert published_failures(domain_of(context), records_of(context), "orders") == (failure,)
        send(context, 20)
        path.write_bytes(whole)
        drop_pauses(housekeeper)
        assert housekeeper.run()
        assert [f.rows for f in active(context)] == [10, 1, 19, 20]  # no 8 neighbours of one level any more
        assert housekeeper.health.failures == {}
        assert published_failures(domain_of(context), records_of(context), "orders") == ()
        assert sum(f.rows for f in active(context)) == 50
        housekeeper.close()


def test_compaction_names_all_damaged_files_of_a_run_at_once() -> None:
    """C13: in the first round, and the files around them are compacted in the same round."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 60)
        bad = [active(context)[n] for n in (10, 11, 25, 40)]
        (Path(root) / "orders" / bad[0].path).write_bytes(DAMAGE)
        (Path(root) / "orders" / bad[1].path).write_bytes(b"")
        (Path(root) / "orders" / bad[2].path).unlink()
        (Path(root) / "orders" / bad[3].path).write_bytes(DAMAGE)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        assert housekeeper.run()
        assert set(housekeeper.health.failures) == {f"reading data file orders/{file.path}" for file in bad}
        assert {failure.count for failure in housekeeper.health.failures.values()} == {1}
        assert [f.rows for f in active(context)] == [10, 1, 1, 13, 1, 14, 1, 19]
        housekeeper.close()


def test_purge_removes_a_damaged_file_of_finished_messages() -> None:
    """C13: purge reads no data file, and a file that left the log is no failure any more."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 20)
        bad = active(context)[3]
        (Path(root) / "orders" / bad.path).write_bytes(b"")
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        housekeeper.run()
        assert len(housekeeper.health.failures) == 1
        purge(domain_of(context).log("orders"), lambda subscription, member, sequences: sequences.last <= 4)
        housekeeper.run()
        assert housekeeper.health.failures == {}
        housekeeper.close()


def test_a_file_missing_from_disk_is_named() -> None:
    """C13: a file that is in the log and not on disk does not stop compaction of the others in silence."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 20)
        bad = active(context)[0]
        (Path(root) / "orders" / bad.path).unlink()
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        housekeeper.run()
        housekeeper.run()
        assert [f.rows for f in active(context)] == [1, 19]
        assert [f.what for f in housekeeper.health.failures.values()] == [f"reading data file orders/{bad.path}"]
        housekeeper.close()


def test_each_step_of_housekeeping_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: with a failing purge the files are still compacted."""

    def broken(*arguments: object, **others: object) -> None:
        raise OSError("the store's disk")

    monkeypatch.setattr(housekeeping, "purge", broken)
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 20)
        housekeeper = Housekeeper(domain_of(context), records_of(context), "orders")
        assert housekeeper.run()
        assert [f.rows for f in active(context)] == [20]
        assert {f.what: f.error for f in housekeeper.health.failures.values()} == {
            "purge of messages": "OSError: the store's disk"
        }
        housekeeper.close()


def test_failing_housekeeping_fails_no_send_and_no_receive(monkeypatch: pytest.MonkeyPatch) -> None:
    """C13, C11: the context's statistics show it, and close() raises nothing."""

    looked = threading.Event()

    def broken(self: Housekeeper) -> bool:
        looked.wait(30)
        raise OSError("a damaged file")

    monkeypatch.setattr(Housekeeper, "run", broken)
    monkeypatch.setattr(client_destinations, "HOUSEKEEPING_EVERY_S", 0.01)
    with memory_domain(orders="queue") as root, connect(root) as context, context.consumer("orders") as consumer:
        assert context.statistics().healthy
        looked.set()
        send(context, 3)
        wait_until(lambda: context.statistics().failed_attempts >= 2)
        for _ in range(20):
            send(context, 1)
            message = consumer.receive(timeout=5)
            assert message is not None
            message.acknowledge()
        statistics = context.statistics()
        assert not statistics.healthy
        assert [(f.what, f.error) for f in statistics.failures] == [
            ("housekeeping of orders", "OSError: a damaged file")
        ]


def test_errors_of_overdue_acknowledgements_reach_the_consumer_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """C8, C9: what it has finished would come again, so its consumer hears of it; a producer does not."""
    with memory_domain(orders="queue") as root, connect(root) as context:
        send(context, 2)
        with context.consumer("orders", acknowledge="dups-ok") as consumer:

            def broken(*_: object) -> None:
                raise OSError("the store")

            working = subscriber_of(consumer).acknowledge
            monkeypatch.setattr(subscriber_of(consumer), "acknowledge", broken)
            assert consumer.receive(timeout=5)
            assert consumer.receive(timeout=5)  # the first is finished, and its acknowledgement is not written yet
            wait_until(lambda: not context.statistics().healthy)
            assert [f.what for f in context.statistics().failures] == [
                f"overdue acknowledgements of {receiver_of(consumer).name}"
            ]
            send(context, 5)
            with pytest.raises(OSError, match="the store"):
                consumer.receive(timeout=0)
            monkeypatch.setattr(subscriber_of(consumer), "acknowledge", working)
            assert consumer.receive(timeout=5)
            wait_until(lambda: context.statistics().healthy)


def test_stat_and_housekeep_show_what_fails() -> None:
    """C14: `jmsq housekeep --once` exits with 1; `jmsq stat` names the file, in its table and in JSON."""
    with memory_domain(orders="queue", other="queue") as root:
        with connect(root, housekeeping=False) as context:
            send(context, 20)
            bad = active(context)[0]
            (Path(root) / "orders" / bad.path).write_bytes(DAMAGE)
        run = CliRunner().invoke
        done = run(cli, ["housekeep", "--root", root, "--once"])
        assert done.exit_code == 1, done.output
        assert f"reading data file orders/{bad.path} failed: UnreadableTableError" in done.output
        shown = run(cli, ["stat", "--root", root])
        assert shown.exit_code == 0, shown.output
        assert "Housekeeping that fails" in shown.output
        assert f"reading data file orders/{bad.path}" in shown.output
        destinations = {
            d["destination"]: d for d in json.loads(run(cli, ["stat", "--root", root, "--json"]).output)["destinations"]
        }
        assert destinations["other"]["health"] == "ok"
        assert destinations["other"]["failures"] == []
        assert destinations["orders"]["health"] == "failing"
        (failure,) = destinations["orders"]["failures"]
        assert failure["what"] == f"reading data file orders/{bad.path}"
        assert failure["count"] == 1
        assert failure["since_ms"] <= failure["last_ms"] < failure["retry_ms"]


@pytest.mark.parametrize("damage", [b"", b"x", DAMAGE, b"PAR1" + b"\x15" * 64 + b"\x40\x00\x00\x00PAR1"])
def test_a_damaged_data_file_is_a_named_error(damage: bytes) -> None:
    """C16: whatever is wrong with its bytes, the consumer gets an UnreadableTableError that names the file."""
    with memory_domain(orders="queue") as root, connect(root, housekeeping=False) as context:
        send(context, 1)
        (bad,) = active(context)
        (Path(root) / "orders" / bad.path).write_bytes(damage)
        with context.consumer("orders") as consumer, pytest.raises(UnreadableTableError, match=bad.path):
            consumer.receive(timeout=1)
