"""The client for asyncio programs, on the same core.

async with aio.connect(root) as context:
    async with context.producer("orders") as producer:
        await producer.send(text="hello")
    async with context.consumer("orders") as consumer:
        async for message in consumer:
            await message.acknowledge()

Features: M7 (docs/FEATURES.md)
"""

from spark_jms.aio.consumer import AsyncConsumer
from spark_jms.aio.context import AsyncContext, ConnectArguments, ConsumerArguments, connect
from spark_jms.aio.message import AsyncMessage
from spark_jms.aio.opening import AsyncOpening
from spark_jms.aio.producer import AsyncProducer

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
