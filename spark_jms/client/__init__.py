"""Send and receive without Spark: producer, consumer, browser and listener, on the same tables and claims.

with connect(root) as context:
    context.producer("orders").send(text="hello", properties={"color": "red"})
    message = context.consumer("orders").receive(timeout=5)

Features: C11 (docs/FEATURES.md)
"""

from spark_jms.client.context.context import Context, connect
from spark_jms.client.context.destinations import TemporaryDestination
from spark_jms.client.context.metrics import ContextStatistics
from spark_jms.client.context.pool import ClientPool, PoolStatistics
from spark_jms.client.messages.message import MapValue, Message, MessageArguments, MessageHeaders, PropertyValue
from spark_jms.client.receiving.browser import Browser
from spark_jms.client.receiving.consumer import Consumer, StartingPosition
from spark_jms.client.receiving.delivery import ConsumerStatistics
from spark_jms.client.receiving.receiver import AcknowledgeMode
from spark_jms.client.sending.asynchronous_send import Completion, CompletionListener, ProducerStatistics, SendReport
from spark_jms.client.sending.producer import Producer
from spark_jms.client.transactions.session import TransactedConsumer, TransactedProducer, TransactedSession
from spark_jms.core.destinations.destination import Subscription
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.types import DurationLike

__all__ = [
    "AcknowledgeMode",
    "Browser",
    "ClientPool",
    "Completion",
    "CompletionListener",
    "ConnectionFactory",
    "Consumer",
    "ConsumerStatistics",
    "Context",
    "ContextStatistics",
    "DurationLike",
    "MapValue",
    "Message",
    "MessageArguments",
    "MessageHeaders",
    "PoolStatistics",
    "Producer",
    "ProducerStatistics",
    "PropertyValue",
    "SendReport",
    "StartingPosition",
    "Subscription",
    "TemporaryDestination",
    "TransactedConsumer",
    "TransactedProducer",
    "TransactedSession",
    "connect",
]


def __dir__() -> list[str]:
    return __all__
