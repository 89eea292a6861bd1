"""Transfers decide the members of units of order when they are appended, as sends do (C18, T10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import spark_jms
from spark_jms.admin.servers import start_server, stop_server
from spark_jms.admin.transfer import Moved, MoveOrder, move
from spark_jms.claims.transactions import transfer as claims_transfer
from spark_jms.client import Context
from spark_jms.core.ordering.units_of_order import slot_of
from spark_jms.errors import MemberRemovalError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.sending import transfer as log_transfer
from spark_jms.testing.inside import domain_of, records_of

SERVERS = ("a", "b", "c")
MINE, YOURS, ITS = ([u for n in range(200) if slot_of(u := f"u{n}") % 3 == member] for member in range(3))


def shape(root: str, *servers: str) -> None:
    queue = {"kind": "distributed-queue", "servers": list(servers), "unitOfOrderRouting": "path-service"}
    stores = {name: {"store": "file"} for name in SERVERS}
    spark_jms.apply(root, {"servers": stores, "destinations": {"orders": queue, "old": {"kind": "queue"}}})


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    root = str(tmp_path / "root")
    shape(root, *SERVERS)
    with spark_jms.connect(root, housekeeping=False) as opened:
        yield opened


def put(context: Context, unit: str | None, *texts: str, to: str = "orders") -> None:
    context.producer(to).send_many([{"text": text, "group_id": unit} for text in texts])


def moved(
    context: Context, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], None], member: int | None = None
) -> Moved:
    """All messages of `old` move to `orders`; between staging and appending, `meanwhile` happens."""
    append = log_transfer.append_transfer

    def late(*args: Any, **named: Any) -> None:
        meanwhile()
        append(*args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(claims_transfer, "append_transfer", late)
        return move(domain_of(context), records_of(context), MoveOrder("old", "orders", target_member=member), wait_s=5)


def members_by_unit(context: Context) -> dict[str | None, dict[int, list[str | None]]]:
    found: dict[str | None, dict[int, list[str | None]]] = {}
    for message in context.browser("orders"):
        found.setdefault(message.group_id, {}).setdefault(message.member, []).append(message.text)
    return found


def members_of(context: Context, unit: str | None) -> dict[int, list[str | None]]:
    return members_by_unit(context)[unit]


def test_unit_that_gets_a_path_after_staging_stays_on_one_member(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18, T10: its own member goes down, the unit begins elsewhere, and the member is back before the transfer is appended."""
    unit, other = MINE[:2]
    for n in range(3):
        put(context, unit, f"{n}", to="old")
        put(context, other, f"{n}", to="old")
    ids = {message.message_id for message in context.browser("old")}

    def path() -> None:
        stop_server(Domain(context.root), "a")
        put(context, unit, "first")
        start_server(Domain(context.root), "a")

    assert moved(context, monkeypatch, path) == Moved(6, 0)
    (where,) = domain_of(context).log("orders").refresh().paths.values()
    assert members_of(context, unit) == {where: ["first", "0", "1", "2"]}
    assert members_of(context, other) == {0: ["0", "1", "2"]}
    assert ids < {message.message_id for message in context.browser("orders")}


def test_unit_whose_slot_moves_after_staging_waits_behind_the_barrier(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C18, T10, D1: its old member keeps what was sent before, and gets nothing more of it."""
    for unit in ITS:
        put(context, unit, "sent")
        put(context, unit, "moved", to="old")

    def change() -> None:
        with pytest.raises(MemberRemovalError):
            shape(context.root, "a", "b")  # c leaves, and has messages

    moved(context, monkeypatch, change)
    slots = domain_of(context).log("orders").refresh().destination.slot_map.owners
    found = members_by_unit(context)
    for unit in ITS:
        assert found[unit] == {2: ["sent"], slots[slot_of(unit)]: ["moved"]}
    with context.consumer("orders", acknowledge="auto") as consumer:
        got = [m for _ in range(2 * len(ITS)) if (m := consumer.receive(5)) is not None]
    for unit in ITS:
        assert [m.text for m in got if m.group_id == unit] == ["sent", "moved"]


def test_transfer_to_a_member_keeps_its_units_there(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18, D3: the administrator has named it."""
    put(context, MINE[0], "0", to="old")
    moved(context, monkeypatch, lambda: None, member=1)
    assert members_of(context, MINE[0]) == {1: ["0"]}


def test_messages_without_a_unit_stay_where_they_were_staged(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """C18, T10: only units of order are routed again."""
    put(context, MINE[0], "x", to="old")
    put(context, None, *"012345", to="old")
    staged: dict[str, int] = {}

    def path() -> None:
        stop_server(Domain(context.root), "a")
        put(context, MINE[0], "first")
        start_server(Domain(context.root), "a")

    real = log_transfer.stage_transfer

    def stage(*args: Any, **named: Any) -> Any:
        target = real(*args, **named)
        staged.update({str(file.member): file.rows for file in target.files})
        return target

    monkeypatch.setattr(claims_transfer, "stage_transfer", stage)
    moved(context, monkeypatch, path)
    assert staged.pop("0") == 3
    got = members_of(context, None)
    assert {str(member): len(texts) for member, texts in got.items()} == {"0": 2, **staged}
    assert all(texts == sorted(map(str, texts)) for texts in got.values())
