"""When an operation on a store's objects is acknowledged (R7, R12)."""

from __future__ import annotations

import asyncio

from spark_jms.store.errors import StoreError
from spark_jms.store.regions.client.space import Planned, Step
from spark_jms.store.regions.client.store_regions import Answered, WriteBatches


def test_update_that_moved_is_acknowledged_once_its_old_block_is_free() -> None:
    """R7: otherwise a deletion could be acknowledged that a crash takes back, since the old block is still there. And what was
    issued after it is acknowledged after it."""

    async def run() -> None:
        sent: list[tuple[str, Answered]] = []

        def send(region: str, steps: list[Step], answered: Answered) -> None:
            sent.append((region, answered))

        def forget(region: str, handle: int) -> Planned:
            return [(region, [(0, b"free")])]

        def failed(error: StoreError) -> None:
            raise error

        writes = WriteBatches(send, forget, failed)
        update = writes.issue(7, [("r1", [(0, b"new")])], leftover="r0")
        deletion = writes.issue(7, [("r1", [(0, b"gone")])])
        await asyncio.sleep(0)
        assert [region for region, _ in sent] == ["r1"], "the old block stays until the new one is on both copies"
        sent.pop()[1](None)
        await asyncio.sleep(0)
        assert [region for region, _ in sent] == ["r0"]
        assert not update.done()
        assert not deletion.done()
        sent.pop()[1](None)
        assert (update.result(), deletion.result()) == (7, 7)

    asyncio.run(run())
