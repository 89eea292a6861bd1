"""Send and receive without Spark: producer, consumer, browser and listener, on the same tables and claims (C11).

with connect(root) as context:
    context.producer("orders").send(text="hello", properties={"color": "red"})
    message = context.consumer("orders").receive(timeout_s=5)
"""

from spark_jms.client.browser import Browser
from spark_jms.client.consumer import Consumer
from spark_jms.client.context import Context, connect
from spark_jms.client.delivery import ConsumerStatistics
from spark_jms.client.message import Message
from spark_jms.client.producer import Producer, ProducerStatistics, SendReport

__all__ = [
    "Browser",
    "Consumer",
    "ConsumerStatistics",
    "Context",
    "Message",
    "Producer",
    "ProducerStatistics",
    "SendReport",
    "connect",
]
