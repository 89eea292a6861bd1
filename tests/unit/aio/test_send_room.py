"""Backpressure of the asyncio client: never above the bound, first come, first served, whatever is cancelled (M7)."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from spark_jms.aio.blocking_calls import SendLimit

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("enter"), st.integers(0, 12)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("cancel"), st.integers(0, 20)),
        st.tuples(st.just("run"), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_room_is_never_exceeded_and_given_in_order(steps: list[Any]) -> None:
    """M7: a message that is larger than all the room goes alone; after all have left, the room is empty."""
    asyncio.run(_check(steps))


async def _check(steps: list[Any]) -> None:
    room, entered, inside = SendLimit(3, 10), [], []
    tasks: list[asyncio.Task[None]] = []

    async def enter(number: int, size: int) -> None:
        await room.enter(size)
        entered.append(number)
        inside.append(size)
        assert len(inside) == 1 or (len(inside) <= 3 and sum(inside) <= 10)

    for step, value in [*steps, ("run", 0)]:
        if step == "enter":
            tasks.append(asyncio.ensure_future(enter(len(tasks), value)))
            await asyncio.sleep(0)
        elif step == "leave" and inside:
            room.leave(inside.pop(value % len(inside)))
        elif step == "cancel" and tasks:
            tasks[value % len(tasks)].cancel()
        else:
            await asyncio.sleep(0)
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        if inside:
            room.leave(inside.pop())
    while inside:
        room.leave(inside.pop())
    assert entered == sorted(entered)
    assert (room.messages, room.waiting) == (0, 0)
    assert all(task.cancelled() or task.exception() is None for task in tasks)


def test_cancelled_waiter_makes_way_for_those_behind_it() -> None:
    """M7: a smaller one behind it enters at once."""

    async def body() -> None:
        room = SendLimit(3, 10)
        await room.enter(5)
        large, small = asyncio.ensure_future(room.enter(8)), asyncio.ensure_future(room.enter(2))
        await asyncio.sleep(0)
        assert room.waiting == 2
        large.cancel()
        await asyncio.wait([large, small], timeout=30)
        assert small.done()
        assert room.messages == 2

    asyncio.run(body())
