"""A stored domain of format version 1, upgraded and continued (C16). `stored/domain-v1.tar.gz` was made by that version:
orders has 12 messages on 2 members (two acknowledged by a client, two batches of a query, a third one logged and not
committed), prices has 4 messages and a subscription that acknowledged one."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import apply, connect
from spark_jms.admin import upgrade as upgrading
from spark_jms.admin.upgrade import plan_upgrade, upgrade
from spark_jms.claims.upkeep import views
from spark_jms.claims.upkeep.usage_history import UsageHistory
from spark_jms.cli.__main__ import cli
from spark_jms.core.records.stored_form import STATE_KEY
from spark_jms.errors import DestinationReplacedError, FormatVersionError, JmsqError, RecordSetError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.tables.files import PROPERTY
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader
from spark_jms.store import Put, open_store
from spark_jms.testing.inside import domain_of, records_of
from tests.harness.domains.other_readers import wrong_answers

STORED = Path(__file__).parent / "stored" / "domain-v1.tar.gz"


@pytest.fixture
def root(tmp_path: Path) -> str:
    domain = tmp_path / "domain"
    domain.mkdir()
    subprocess.run(["tar", "-xzf", STORED, "-C", domain], check=True)  # Python's own has no filter before 3.11.4
    return str(domain)


def upgraded(root: str) -> None:
    domain = Domain(root, upgrading=True)
    with open_store(domain.store_uri) as store:
        upgrade(domain, store)


def checkpoint(root: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((Path(root) / "checkpoint.json").read_text())
    return value


def texts(reader: JmsqStreamReader, start: Any, end: Any) -> list[str]:
    return [
        row["text"]
        for partition in reader.partitions(start, end)
        for batch in reader.read(partition)
        for row in batch.to_pylist()
    ]


def test_domain_of_version_1_is_refused_by_name(root: str) -> None:
    """C16: nothing reads old positions as none: the error names the command."""
    with pytest.raises(FormatVersionError, match="jmsq upgrade --root"):
        Domain(root)


def test_query_and_subscription_continue_after_the_upgrade(root: str) -> None:
    """C16, C5: the logged batch is replayed exactly, its successor follows, nothing comes twice, nothing is lost."""
    upgraded(root)
    known = checkpoint(root)
    reader = JmsqStreamReader(parse_options({"root": root, "destination": "orders", "maxMessagesPerTrigger": "100"}))
    assert texts(reader, known["offsets"][2], known["offsets"][3]) == known["texts"][2]
    last = reader.latestOffset(known["offsets"][3], ReadMaxRows(100))
    assert last["v"] == 2
    assert last["claim"].startswith("4-")
    rest = texts(reader, known["offsets"][3], last)
    assert reader.latestOffset(last, ReadMaxRows(100)) == last
    reader.stop()
    received = [text for batch in known["texts"] for text in batch] + rest
    assert len(received) == len(set(received)) == 10  # a client had acknowledged the other two
    with connect(root, housekeeping=False) as context:
        with context.consumer("prices", subscription="eu", acknowledge="auto") as consumer:
            got = [message.text for message in iter(lambda: consumer.receive(timeout=0.5), None)]
        assert got == ["p1", "p2", "p3"]
        rows = views.acknowledgements(domain_of(context), records_of(context), "orders")
        assert sum(row.messages for row in rows) == 12


def test_old_offset_of_an_unknown_query_is_refused(root: str) -> None:
    """C18: an offset without a table is bound only where the upgrade found its query."""
    upgraded(root)
    offset = {**checkpoint(root)["offsets"][2], "consumer": "query-of-another-domain"}
    reader = JmsqStreamReader(parse_options({"root": root, "destination": "orders"}))
    with pytest.raises(DestinationReplacedError, match="offset of version 1"):
        reader.latestOffset(offset, ReadMaxRows(1))
    reader.stop()


def test_upgrade_refuses_while_sessions_live(root: str) -> None:
    """C16: a job of the old version would write records that are no longer read."""
    domain = Domain(root, upgrading=True)
    with (
        open_store(domain.store_uri) as store,
        store.connect("busy job"),
        pytest.raises(JmsqError, match="busy job"),
    ):
        upgrade(domain, store)
    with pytest.raises(FormatVersionError, match="earlier version"):
        Domain(root)


def test_table_behind_its_store_is_not_adopted(root: str) -> None:
    """C16, C18: positions of a destination that was dropped and created again would finish messages that no consumer saw."""
    domain = Domain(root, upgrading=True)
    with open_store(domain.store_uri) as store:
        with store.connect("old") as session, session.open("orders/-/1") as handle:
            state = json.loads(handle.read(STATE_KEY) or b"")
            handle.commit([Put(STATE_KEY, json.dumps({**state, "floor": 99}).encode())])
        with pytest.raises(RecordSetError, match="store knows message 99 of orders/-/1"):
            upgrade(domain, store)


@pytest.mark.parametrize("step", range(12))
def test_interrupted_upgrade_is_finished_by_the_next(root: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: killed before any of its writes, the domain is refused until a second run finishes; the result is the same."""

    class Killed(BaseException):
        pass

    left = [step]

    def counting(real: Callable[..., None]) -> Callable[..., None]:
        def call(*args: Any, **named: Any) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            real(*args, **named)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(upgrading, "moved", counting(upgrading.moved))
        patch.setattr(upgrading, "write_progress", counting(upgrading.write_progress))
        patch.setattr(Domain, "mark", counting(Domain.mark))
        try:
            upgraded(root)
        except Killed:
            with pytest.raises(FormatVersionError, match="jmsq upgrade"):
                Domain(root)
    domain = Domain(root, upgrading=True)
    if domain.needs_upgrade:
        upgraded(root)
    else:
        assert step > 5, "a run that was killed early cannot be complete"
    domain = Domain(root)
    with open_store(domain.store_uri) as store:
        assert plan_upgrade(domain, store).records == ()
        states = views.states(domain, store, "orders", None)
        assert sum(state.unfinished(1, 6).count for state in states.values()) == 6
        (claim,) = {claim.claim for claim in views.claims(domain, store, "orders")}
        assert claim.startswith("3-")


def table_names(root: str, *command: str) -> list[str]:
    done = CliRunner().invoke(cli, ["upgrade", "--root", root, "--json", *command])
    assert done.exit_code == 0, done.output
    names: list[str] = json.loads(done.stdout)["tables"]
    return names


def shown(root: str) -> set[str | None]:
    """What the tables of the domain say of their statistics."""
    logs = Path(root).rglob("_delta_log/00000000000000000000.json")
    return {DeltaTable(str(path.parent.parent)).metadata().configuration.get(PROPERTY) for path in logs}


def without_property(root: str) -> None:
    """As releases before it have made the tables."""
    for path in Path(root).rglob("_delta_log/*.json"):
        path.write_text(re.sub(rf'"{re.escape(PROPERTY)}":"[^"]*",?', "", path.read_text()).replace(",}", "}"))


def test_tables_of_an_earlier_release_get_their_property_beside_clients(tmp_path: Path) -> None:
    """C16, C3: all tables of the domain, one commit each, while a client is connected; the second upgrade finds nothing."""
    root = str(tmp_path)
    kinds = {"orders": {"kind": "queue", "messageLoggingEnabled": True}, "prices": {"kind": "topic"}}
    apply(root, {"destinations": kinds})
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send(text="before")
        assert UsageHistory(domain_of(context), records_of(context)).record(["orders"])[1] == {}
        without_property(root)
        assert shown(root) == {None}
    with connect(root, housekeeping=False) as context:
        first = domain_of(context).log("orders").refresh()
        expected = [
            "orders",
            "acknowledgements of orders",
            "life cycle of orders",
            "prices",
            "acknowledgements of prices",
        ]
        expected.append("usage history")
        assert table_names(root, "--dry-run") == expected
        assert shown(root) == {None}
        assert table_names(root) == expected
        assert table_names(root) == table_names(root, "--dry-run") == []
        messages = "ordinal,JMSTimestamp,JMSPriority,JMSExpiration,JMSDeliveryTime"
        assert shown(root) == {messages, "ordinal,acknowledged_ms", "ordinal"}
        after = domain_of(context).log("orders").refresh()
        assert (after.version, after.destination) == (first.version + 1, first.destination)
        with context.consumer("orders") as consumer:
            message = consumer.receive(timeout=10)
            assert message is not None
            assert message.text == "before"


def test_any_commit_adds_the_property_and_a_declaration_keeps_it(tmp_path: Path) -> None:
    """C3: a send to a table of an earlier release, and a change of its declaration."""
    root = str(tmp_path)
    for priority in (1, 2):
        apply(root, {"destinations": {"orders": {"kind": "queue"}}})
        without_property(root)
        with connect(root, housekeeping=False) as context:
            if priority == 1:
                context.producer("orders").send(text="first")
            apply(root, {"destinations": {"orders": {"kind": "queue", "retention": f"{priority} h"}}})
        table = DeltaTable(f"{root}/orders").metadata().configuration
        assert table[PROPERTY].startswith("ordinal,JMSTimestamp")
        assert table["jmsq.retentionMs"] == str(priority * 3_600_000)


def test_stored_files_have_bounds_of_all_columns_that_their_table_names(root: str) -> None:
    """C16, C3: other readers answer rightly for the tables of format version 1, once it is upgraded."""
    upgraded(root)
    domain = Domain(root)
    for log in (domain.log("orders"), domain.log("prices"), domain.acknowledgements("orders")):
        snapshot = log.refresh()
        named = snapshot.metadata["configuration"][PROPERTY].split(",")
        for file in snapshot.files.values():
            assert set(named) <= file.statistics["minValues"].keys() & file.statistics["maxValues"].keys()
    assert wrong_answers(f"{root}/orders", "to_pyarrow_dataset") == []
