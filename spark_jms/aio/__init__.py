"""The client for asyncio programs, on the same core.

async with aio.connect(root) as context:
    async with context.producer("orders") as producer:
        await producer.send(text="hello")
    async with context.consumer("orders") as consumer:
        async for message in consumer:
            await message.acknowledge()

Features: M7 (docs/FEATURES.md)
"""

from spark_jms.aio.clients import AsyncConsumer, AsyncMessage, AsyncProducer
from spark_jms.aio.context import AsyncContext, AsyncOpening, ConnectArguments, ConsumerArguments, connect

__all__ = [
    "AsyncConsumer",
    "AsyncContext",
    "AsyncMessage",
    "AsyncProducer",
    "ConnectArguments",
    "ConsumerArguments",
    "AsyncOpening",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
