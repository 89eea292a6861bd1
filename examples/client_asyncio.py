"""asyncio: many coroutines send, a service replies, and a cancelled receive loses no message.

python examples/client_asyncio.py

It prints

    100 coroutines sent in few commits
    100 handled, although a receive was cancelled
    100, says the service
"""

from __future__ import annotations

import asyncio

from spark_jms import aio
from spark_jms.testing import memory_domain

ORDERS = 100


async def main(root: str) -> None:
    async with aio.connect(root) as context, context.producer("orders") as producer:
        await asyncio.gather(*(producer.send(text=f"order {number}") for number in range(ORDERS)))
        commits = producer.statistics().commits
        print(f"{ORDERS} coroutines sent in {'few' if commits < ORDERS // 2 else 'many'} commits")

        async with context.consumer("orders", acknowledge="individual") as consumer:
            impatient = asyncio.ensure_future(consumer.receive())
            await asyncio.sleep(0)
            impatient.cancel()
            handled = 0
            async for message in consumer.messages(idle_timeout=0.2):
                await message.acknowledge()
                handled += 1
            print(f"{handled} handled, although a receive was cancelled")

        async with context.consumer("questions") as service:
            asking = asyncio.ensure_future(context.request("questions", text="how many?", timeout="30 s"))
            question = await service.receive()
            if question is not None:
                await question.reply(text=str(handled))
                await question.acknowledge()
            print(f"{(await asking).text}, says the service")


if __name__ == "__main__":
    with memory_domain(orders="queue", questions="queue") as root:
        asyncio.run(main(root))
