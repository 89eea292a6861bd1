"""The path service: units of order that begin while their member is down go to another one, and stay there (T10)."""

from __future__ import annotations

import json
import pickle
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import spark_jms
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.claims.upkeep.housekeeping import Housekeeper
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context
from spark_jms.core.destinations.destination import FORMAT_VERSION, Destination
from spark_jms.core.destinations.routing import ANY_MEMBER, Balancing
from spark_jms.core.destinations.servers import HOME
from spark_jms.core.ordering.units_of_order import slot_of
from spark_jms.core.transactions.transfer import StagedFile
from spark_jms.errors import FormatVersionError, JmsqError, MemberRemovalError, ServerDownError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending import units_of_order
from spark_jms.log.sending.send import Sent, TransactionId, send
from spark_jms.log.sending.units_of_order import PathEnding, end_paths, may_have
from spark_jms.log.tables.checkpoints import write_checkpoint
from spark_jms.log.tables.delta_log import DeltaLog
from spark_jms.log.tables.files import DataFile
from spark_jms.log.tables.snapshot import RouteId, Snapshot
from spark_jms.testing.inside import records_of

SERVERS = ("a", "b", "c")
MINE, YOURS, ITS = ([u for n in range(200) if slot_of(u := f"u{n}") % 3 == member] for member in range(3))


def shape(root: str, *servers: str, **more: Any) -> None:
    queue = {"kind": "distributed-queue", "servers": list(servers), "unitOfOrderRouting": "path-service", **more}
    stores = {name: {"store": "file"} for name in SERVERS}
    spark_jms.apply(root, {"servers": stores, "destinations": {"orders": queue}})


@pytest.fixture
def root(tmp_path: Path) -> str:
    where = str(tmp_path / "root")
    shape(where, *SERVERS)
    return where


@pytest.fixture
def context(root: str) -> Iterator[Context]:
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def put(context: Context, unit: str, text: str = "x", to: str = "orders") -> int:
    """The member."""
    return context.producer(to).send(text=text, group_id=unit).member


def snapshot(context: Context) -> Snapshot:
    return Domain(context.root).log("orders").refresh()


def paths(context: Context) -> dict[str, int]:
    return dict(snapshot(context).paths)


def stop(context: Context, *servers: str) -> None:
    for server in servers:
        stop_server(Domain(context.root), server)


def start(context: Context, *servers: str) -> None:
    for server in servers:
        start_server(Domain(context.root), server)


def received(context: Context, to: str = "orders") -> list[tuple[str, str]]:
    """(unit, text) of all messages as they come."""
    with context.consumer(to, acknowledge="auto") as consumer:
        got = []
        while (message := consumer.receive(0.5)) is not None:
            got.append((message.group_id or "", message.text or ""))
        return got


def keep_house(context: Context) -> None:
    housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
    housekeeper.run()
    housekeeper.close()
    assert not housekeeper.health.failures


class Batch:
    """Messages that are staged and not committed yet, as a task of Spark leaves them."""

    def __init__(self, log: DeltaLog, units: list[str], texts: list[str], balancing: Balancing = ANY_MEMBER) -> None:
        seen = log.refresh()
        writer = MessageWriter(log.storage, seen.destination, 0, routing=balancing.routing(seen.destination))
        writer.write(pa.record_batch({"text": pa.array(texts), "JMSXGroupID": pa.array(units)}))
        self.files: list[StagedFile] = writer.close()
        self._log, self._route, self._balancing = log, seen.route_id, balancing

    @property
    def route(self) -> RouteId:
        return self._route

    def commit(self, *others: Batch, transaction: TransactionId | None = None) -> Sent:
        files = [file for batch in (self, *others) for file in batch.files]
        return send(self._log, files, self._route, transaction, balancing=self._balancing)


def test_new_unit_goes_to_a_member_that_is_up_and_stays_there(context: Context) -> None:
    """T10: also when its own member is up again; units with messages of the member that is down fail, those of others stay."""
    old, new = MINE[:2]
    assert put(context, old, "1") == 0
    stop(context, "a")
    there = put(context, new, "1")
    assert there in (1, 2)
    assert paths(context) == {new: there}
    with pytest.raises(ServerDownError, match="stopped server a"):
        put(context, old, "2")
    assert put(context, YOURS[0]) == 1
    start(context, "a")
    assert put(context, new, "2") == there
    assert put(context, old, "2") == 0
    got = received(context)
    assert [text for unit, text in got if unit == new] == [text for unit, text in got if unit == old] == ["1", "2"]
    assert paths(context) == {new: there}


def test_hashing_fails_for_new_units_too(context: Context) -> None:
    """T10: as the text says; and it is the default."""
    shape(context.root, *SERVERS, unitOfOrderRouting="hash")
    assert Destination("q", "queue").unit_of_order_routing == "hash"
    stop(context, "a")
    with pytest.raises(ServerDownError):
        put(context, MINE[0])
    assert paths(context) == {}


def test_path_to_a_member_that_goes_down_fails(context: Context) -> None:
    """T10: the send for an existing path."""
    stop(context, "a")
    there = put(context, MINE[0])
    start(context, "a")
    stop(context, SERVERS[there])
    with pytest.raises(ServerDownError, match=f"stopped server {SERVERS[there]}"):
        put(context, MINE[0])


def test_path_ends_when_the_unit_has_no_messages_left(context: Context) -> None:
    """T10, C13: then the unit goes to its own member; a path whose unit has messages stays."""
    gone, stays = MINE[:2]
    stop(context, "a")
    for unit in (gone, stays):
        put(context, unit, "1")
    start(context, "a")
    keep_house(context)
    assert paths(context).keys() == {gone, stays}
    received(context)
    put(context, stays, "2")
    keep_house(context)
    assert paths(context).keys() == {stays}
    assert put(context, gone, "2") == 0
    received(context)
    keep_house(context)
    assert paths(context) == {}
    assert end_paths(Domain(context.root).log("orders")) == 0


def test_batch_that_followed_a_path_which_has_ended_is_routed_again(context: Context) -> None:
    """T10, C5: the end of a path is ordered with the sends."""
    log = Domain(context.root).log("orders")
    unit = MINE[0]
    stop(context, "a")
    there = put(context, unit, "1")
    start(context, "a")
    batch = Batch(log, [unit, YOURS[0]], ["2", "y"])
    assert {file.member for file in batch.files} == {there, 1}
    received(context)
    keep_house(context)
    assert paths(context) == {}
    sent = batch.commit()
    assert {m: picks.count for m, picks in sent.sequences.items()} == {0: 1, 1: 1}


def test_first_committer_makes_the_path_of_a_unit(context: Context) -> None:
    """T10: a task has placed the unit elsewhere, by other members that were up; its commit follows the path that is there."""
    log = Domain(context.root).log("orders")
    unit = MINE[0]
    stop(context, "a")
    late = Batch(log, [unit, MINE[1]], ["2", "z"])
    (first,) = {file.member for file in late.files if unit in file.placed}
    stop(context, SERVERS[first])
    there = put(context, unit, "1")
    assert there == 3 - first
    start(context, SERVERS[first])
    late.commit()
    assert paths(context)[unit] == there
    assert [(m.member, m.text) for m in context.browser("orders") if m.group_id == unit] == [(there, "1"), (there, "2")]
    assert received(context)


def test_tasks_of_a_batch_place_a_new_unit_alike(context: Context) -> None:
    """T10, C5: and the batch is committed once, with the paths."""
    log = Domain(context.root).log("orders")
    stop(context, "b")
    tasks = [Batch(log, YOURS[:20], [str(n)] * 20) for n in range(3)]
    done = tasks[0].commit(*tasks[1:], transaction=TransactionId("sink/q", 1))
    assert paths(context).keys() == set(YOURS[:20])
    assert set(paths(context).values()) == {0, 2}
    again = Batch(log, YOURS[:20], ["0"] * 20).commit(transaction=TransactionId("sink/q", 1))
    assert (done.version > 0, again.version) == (True, -1)
    got = received(context)
    assert all([text for u, text in got if u == unit] == ["0", "1", "2"] for unit in YOURS[:20])


def test_sink_decides_about_new_units_at_its_commit(context: Context) -> None:
    """T10, C1: tasks know the paths that there are, and report the units that they have placed."""
    from pyspark.sql.types import StringType, StructField, StructType

    from spark_jms.spark.options import parse_options
    from spark_jms.spark.sink import JmsqStreamWriter, StagedMessage

    stop(context, "a")
    there = put(context, MINE[0], "0")
    text = StructType([StructField("text", StringType())])
    writer = JmsqStreamWriter(parse_options({"root": context.root, "destination": "orders"}), text, False)
    assert dict(pickle.loads(pickle.dumps(writer.destination)).paths) == {MINE[0]: there}
    log = Domain(context.root).log("orders")
    batches = [Batch(log, MINE[:5], [str(n)] * 5) for n in (1, 2)]
    tasks = [StagedMessage(n, "query", one.route, one.files, ANY_MEMBER) for n, one in enumerate(batches)]
    writer.commit(pickle.loads(pickle.dumps(tasks)), 7)
    assert paths(context).keys() == set(MINE[:5])
    got = received(context)
    assert [text for unit, text in got if unit == MINE[0]] == ["0", "1", "2"]
    assert all([text for unit, text in got if unit == mine] == ["1", "2"] for mine in MINE[1:5])


def test_unit_placed_before_its_member_returned_goes_home(context: Context) -> None:
    """T10: what was placed elsewhere is new no more when its own member is up at the commit."""
    log = Domain(context.root).log("orders")
    stop(context, "a")
    batch = Batch(log, [MINE[0]], ["1"])
    start(context, "a")
    assert set(batch.commit().sequences) == {0}
    assert paths(context) == {}


def test_unit_staged_for_a_member_that_goes_down_is_decided_at_commit(context: Context) -> None:
    """T10, D9: a new one goes elsewhere, and one that has messages there by then fails the batch."""
    log = Domain(context.root).log("orders")
    new, known = Batch(log, [MINE[0]], ["1"]), Batch(log, [MINE[1]], ["2"])
    put(context, MINE[1], "1")
    stop(context, "a")
    assert set(new.commit().sequences) <= {1, 2}
    assert paths(context).keys() == {MINE[0]}
    with pytest.raises(ServerDownError):
        known.commit()


def test_message_on_a_member_whose_slots_have_moved_makes_a_unit_known(context: Context) -> None:
    """T10: its own member has none of it, but it waits there for older ones behind a barrier."""
    for unit in (*MINE, *YOURS, *ITS):
        put(context, unit, "1")
    with pytest.raises(MemberRemovalError):
        shape(context.root, "a", "b")
    owners = snapshot(context).destination.slot_map.owners
    moved = next(unit for unit in ITS if owners[slot_of(unit)] == 0)
    stop(context, "a")
    with pytest.raises(ServerDownError):
        put(context, moved, "2")
    new = next(unit for n in range(9_999) if owners[slot_of(unit := f"new{n}")] == 0)
    assert put(context, new, "1") == 1


def test_leaving_member_gives_its_paths_away_behind_a_barrier(context: Context) -> None:
    """T10, D1: the unit goes on with its own member, which waits until the path's member has none of it."""
    unit = next(u for u in MINE if ANY_MEMBER.routing(_without_a(context)).member_of_unit(u) == 2)
    stop(context, "a")
    assert put(context, unit, "1") == 2
    start(context, "a")
    with pytest.raises(MemberRemovalError):
        shape(context.root, "a", "b")
    assert paths(context) == {}
    owner = put(context, unit, "2")
    assert owner in (0, 1)
    assert received(context, f"{SERVERS[owner]}@orders") == []
    assert received(context) == [(unit, "1"), (unit, "2")]
    shape(context.root, "a", "b")
    assert list(snapshot(context).destination.member_ids) == [0, 1]


def _without_a(context: Context) -> Destination:
    import attrs

    return attrs.evolve(snapshot(context).destination, stopped={"a": 1})


def test_paths_survive_checkpoints_and_have_a_format_version(context: Context) -> None:
    """T10, C13, C16: an earlier version that knows no paths refuses the table by name; an ended path is not in a checkpoint."""
    kept, ended = MINE[0], ITS[0]
    stop(context, "c")
    put(context, ended)
    start(context, "c")
    received(context)
    keep_house(context)
    stop(context, "a")
    there = put(context, kept)
    log = Domain(context.root).log("orders")
    write_checkpoint(log.storage, log.refresh())
    for version in range(log.snapshot.version):
        log.storage.delete(f"_delta_log/{version:020d}.json")
    fresh = Domain(context.root).log("orders")
    assert dict(fresh.refresh().paths) == {kept: there}
    stored = fresh.snapshot.metadata["configuration"]
    assert stored["jmsq.formatVersion"] == "5"
    with pytest.raises(FormatVersionError):
        Destination.from_configuration({**stored, "jmsq.formatVersion": str(FORMAT_VERSION + 1)}, "here")


def test_paths_are_followed_after_a_change_to_hashing(context: Context) -> None:
    """T10: until they end; no new ones are made, and the table keeps its format version."""
    stop(context, "a")
    there = put(context, MINE[0], "1")
    shape(context.root, *SERVERS, unitOfOrderRouting="hash")
    assert snapshot(context).metadata["configuration"]["jmsq.formatVersion"] == "5"
    assert put(context, MINE[0], "2") == there
    with pytest.raises(ServerDownError):
        put(context, MINE[1])
    start(context, "a")
    assert put(context, MINE[0], "3") == there
    assert [text for _, text in received(context)] == ["1", "2", "3"]
    keep_house(context)
    assert put(context, MINE[0], "4") == 0


def test_describe_counts_paths(context: Context) -> None:
    """T10, C14."""
    stop(context, "a")
    there = put(context, MINE[0])
    shown = CliRunner().invoke(cli, ["describe", "orders", "--root", context.root]).stdout
    assert f"member {there}: 1 unit(s) of order stay here" in shown
    document = json.loads(CliRunner().invoke(cli, ["describe", "orders", "--root", context.root, "--json"]).stdout)
    assert document[0]["paths"] == {str(there): 1}


def test_named_server_makes_and_follows_no_path(context: Context) -> None:
    """T10, D3."""
    stop(context, "a")
    there = put(context, MINE[0])
    other = 3 - there
    assert put(context, MINE[0], to=f"{SERVERS[other]}@orders") == other
    assert put(context, MINE[1], to="b@orders") == 1
    assert paths(context) == {MINE[0]: there}


def test_refused_unit_does_not_fail_other_senders_of_a_shared_commit(context: Context) -> None:
    """T10, C11: threads that share commits; units that are new, known, and of other members."""
    put(context, MINE[0])
    stop(context, "a")
    producer = context.producer("orders")
    refused, sent = [], []
    ready = threading.Barrier(6)

    def run(unit: str) -> None:
        ready.wait(30)
        for n in range(10):
            try:
                sent.append((unit, producer.send(text=str(n), group_id=unit).member))
            except ServerDownError:
                refused.append(unit)

    threads = [threading.Thread(target=run, args=(unit,)) for unit in (*MINE[:4], YOURS[0], ITS[0])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert refused == [MINE[0]] * 10
    assert len(sent) == 50
    assert paths(context) == {unit: member for unit, member in sent if unit in MINE}
    for unit in (*MINE[1:4], YOURS[0], ITS[0]):
        assert [m.text for m in context.browser("orders") if m.group_id == unit] == [str(n) for n in range(10)]


def test_looking_for_old_messages_reads_a_file_once(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T10, C13: and none whose statistics exclude the unit."""
    known = sorted(MINE[:30])
    context.producer("orders").send_many([{"text": "x", "group_id": unit} for unit in known])
    stop(context, "a")
    log = Domain(context.root).log("orders")
    opened: list[str] = []
    real = log.storage.open_input

    def open_input(path: str) -> Any:
        opened.append(path)
        return real(path)

    monkeypatch.setattr(log.storage, "open_input", open_input)
    outside = next(f"z{n}" for n in range(99) if slot_of(f"z{n}") % 3 == 0)
    Batch(log, [outside], ["1"]).commit()
    assert opened == []
    within = [unit for unit in MINE if known[0] < unit < known[-1] and unit not in known][:3]
    for unit in within:
        Batch(log, [unit], ["1"]).commit()
    assert len(opened) == 1
    assert paths(context).keys() == {outside, *within}


@pytest.mark.parametrize("wanted", [["k3", "x"], [f"k{n}" for n in range(90)]], ids=["fewer than", "more than"])
def test_units_are_found_in_a_file_with_other_units(context: Context, wanted: list[str]) -> None:
    """T10: fewer units are wanted than the file has, or more."""
    log = Domain(context.root).log("orders")
    context.producer("a@orders").send_many([{"text": "x", "group_id": f"k{n % 10}"} for n in range(40)])
    (path,) = log.refresh().files
    assert log.units.among(path, set(wanted)) == {f"k{n}" for n in range(10)}.intersection(wanted)


@given(st.sets(st.text(max_size=3), min_size=1), st.sets(st.text(max_size=3), min_size=1))
def test_statistics_exclude_no_unit_of_a_file(there: set[str], wanted: set[str]) -> None:
    """T10: a file is read when one of the wanted units may be in it by its bounds."""
    bounds = {"minValues": {"JMSXGroupID": min(there)}, "maxValues": {"JMSXGroupID": max(there)}}
    file = DataFile("f", 0, 1, len(there), 1, 0, 0, json.dumps({**bounds, "nullCount": {"JMSXGroupID": 0}}), 1)
    assert may_have(file, sorted(wanted)) == any(min(there) <= unit <= max(there) for unit in wanted)


def test_paths_end_in_commits_of_limited_size(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T10, C13."""
    monkeypatch.setattr(units_of_order, "_MOST_IN_A_COMMIT", 4)
    stop(context, "a")
    context.producer("orders").send_many([{"text": "x", "group_id": unit} for unit in MINE[:9]])
    received(context)
    log = Domain(context.root).log("orders")
    before = log.refresh().version
    keep_house(context)
    assert log.refresh().version - before >= 3
    assert dict(log.snapshot.paths) == {}


def test_looking_for_unused_paths_takes_a_tenth_of_the_time(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """T10, C13: with a million paths a look takes seconds, and housekeeping has other work too."""
    looks, now = list[float](), 100.0

    def look(log: DeltaLog) -> int:
        nonlocal now
        looks.append(now)
        now += 2
        return 0

    monkeypatch.setattr(units_of_order, "end_paths", look)
    ending = PathEnding(Domain(context.root).log("orders"), lambda: now)
    while now < 150:
        ending.run()
        now += 1
    assert looks == [100.0, 120.0, 140.0]


def test_destinations_without_a_member_down_write_no_paths(context: Context) -> None:
    """T10: a path service costs a send nothing while all members are up."""
    put(context, MINE[0])
    log = Domain(context.root).log("orders")
    data = log.storage.get(f"_delta_log/{log.refresh().version:020d}.json") or b""
    transactions = [json.loads(line).get("txn", {}).get("appId") for line in data.splitlines()]
    assert not [app_id for app_id in transactions if app_id and app_id.startswith("path/")]
    assert HOME not in snapshot(context).destination.servers_in_use()


@pytest.mark.parametrize("seed", range(4))
def test_units_keep_their_order_through_many_changes(context: Context, seed: int) -> None:
    """T10, D1, D4: servers are stopped and started, leave and join, batches wait between staging and commit, and messages are
    consumed and purged meanwhile. Every unit is received in the order of its commits."""
    draw, log = random.Random(seed), Domain(context.root).log("orders")
    units = [*MINE[:5], *YOURS[:5], *ITS[:5]]
    sent: dict[str, list[str]] = {unit: [] for unit in units}
    got: dict[str, list[str]] = {unit: [] for unit in units}
    staged: list[tuple[list[str], str, Batch]] = []
    seen: Counter[str] = Counter()

    def put_some(step: int) -> None:
        for unit in draw.sample(units, 5):
            with suppress(ServerDownError):
                put(context, unit, f"{step}")
                sent[unit].append(f"{step}")

    def commit_one(step: int) -> None:
        chosen, text, batch = staged.pop(draw.randrange(len(staged)))
        with suppress(ServerDownError):
            batch.commit()
            for unit in chosen:
                sent[unit].append(text)

    def drain() -> None:
        for unit, text in received(context):
            got[unit].append(text)

    stop(context, draw.choice(SERVERS))
    put_some(-2)
    put_some(-1)
    for step in range(40):
        what = draw.choice(["put", "put", "stage", "commit", "stop", "stop", "start", "shape", "drain", "house"])
        if what == "put":
            put_some(step)
        elif what == "stage":
            chosen = draw.sample(units, 4)
            staged.append((chosen, f"late {step}", Batch(log, chosen, [f"late {step}"] * 4)))
        elif what == "commit" and staged:
            commit_one(step)
        elif what == "stop":
            stop(context, draw.choice(SERVERS))
        elif what == "start":
            start(context, *SERVERS)
        elif what == "shape":
            with suppress(JmsqError):
                shape(context.root, *draw.sample(SERVERS, draw.choice([2, 3, 3])))
        elif what == "drain":
            drain()
        elif what == "house":
            housekeeper = Housekeeper(Domain(context.root), records_of(context), "orders")
            housekeeper.run()
            housekeeper.close()
        seen["paths"] += bool(paths(context))
    start(context, *SERVERS)
    while staged:
        commit_one(99)
    drain()
    assert got == sent
    assert seen["paths"]
