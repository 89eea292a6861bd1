"""Send and receive without Spark: producer, consumer, browser and listener, on the same tables and claims.

with connect(root) as context:
    context.producer("orders").send(text="hello", properties={"color": "red"})
    message = context.consumer("orders").receive(timeout=5)

Features: C11 (docs/FEATURES.md)
"""

from spark_jms.client.browser import Browser
from spark_jms.client.completion import Completion, CompletionListener
from spark_jms.client.consumer import Consumer
from spark_jms.client.consumer_arguments import StartingPosition
from spark_jms.client.context import Context, connect
from spark_jms.client.context_statistics import ContextStatistics
from spark_jms.client.delivery import ConsumerStatistics
from spark_jms.client.message import MapValue, Message, MessageArguments, MessageHeaders, PropertyValue
from spark_jms.client.pool import ClientPool, PoolStatistics
from spark_jms.client.producer import Producer
from spark_jms.client.receiver import AcknowledgeMode
from spark_jms.client.send_report import ProducerStatistics, SendReport
from spark_jms.client.temporary import TemporaryDestination
from spark_jms.client.transacted_producer import TransactedProducer
from spark_jms.client.transacted_session import TransactedConsumer, TransactedSession
from spark_jms.core.destination import Subscription
from spark_jms.settings.connection_factory import ConnectionFactory
from spark_jms.settings.duration import DurationLike

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
