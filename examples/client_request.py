"""Request and reply: one thread sends requests, another one replies. In practice they are separate programs.

python examples/client_request.py            in a temporary domain
JMSQ_ROOT=/data/domain python examples/client_request.py   in your domain, which needs a queue named orders

It prints

    21 + 21 = 42
    Without a service: RequestTimeoutError
"""

from __future__ import annotations

import os
from contextlib import nullcontext, suppress

from spark_jms import connect
from spark_jms.client import Message
from spark_jms.errors import RequestTimeoutError, TemporaryDestinationDeletedError
from spark_jms.testing import memory_domain


def add(message: Message) -> None:
    """The listener of the answering side. With "auto" the request is acknowledged when this returns: after the reply."""
    numbers = message.map or {}
    with suppress(TemporaryDestinationDeletedError):  # the requestor no longer waits
        message.reply(map={"sum": sum(value for value in numbers.values() if isinstance(value, int))})


def main() -> None:
    yours = os.environ.get("JMSQ_ROOT")
    with (
        nullcontext(yours) if yours else memory_domain(orders="queue") as root,
        connect(root) as service,
        connect(root) as client,
    ):
        with service.consumer("orders", listener=add, acknowledge="auto"):
            reply = client.request("orders", map={"a": 21, "b": 21}, timeout="30 s")
            print(f"21 + 21 = {(reply.map or {})['sum']}")
        try:
            client.request("orders", map={"a": 1}, timeout="100 ms")
        except RequestTimeoutError as error:
            print(f"Without a service: {type(error).__name__}")


if __name__ == "__main__":
    main()
