"""A stored domain of format version 1, upgraded and continued (C16). `stored/domain-v1.tar.gz` was made by that version:
orders has 12 messages on 2 members (two acknowledged by a client, two batches of a query, a third one logged and not
committed), prices has 4 messages and a subscription that acknowledged one."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from spark_jms import connect
from spark_jms.admin import upgrade as upgrading
from spark_jms.admin.upgrade import plan_upgrade, upgrade
from spark_jms.claims import views
from spark_jms.core.record_set_v1 import STATE_KEY
from spark_jms.errors import DestinationReplacedError, FormatVersionError, JmsqError, RecordSetError
from spark_jms.log.domain import Domain
from spark_jms.spark.options import parse_options
from spark_jms.spark.source import JmsqStreamReader, read_partition
from spark_jms.store import Put, open_store

STORED = Path(__file__).parent / "stored" / "domain-v1.tar.gz"


@pytest.fixture
def root(tmp_path: Path) -> str:
    with tarfile.open(STORED) as archive:
        archive.extractall(tmp_path / "domain", filter="data")
    return str(tmp_path / "domain")


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
        for batch in read_partition(partition)  # type: ignore[arg-type]
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
        rows = views.acknowledgements(context._domain, context._store, "orders")
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
        patch.setattr(upgrading, "_move", counting(upgrading._move))
        patch.setattr(upgrading, "_write_progress", counting(upgrading._write_progress))
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
