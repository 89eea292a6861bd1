"""Short ways to send, receive and reject messages."""

from __future__ import annotations

from spark_jms.client import Consumer, Context


def texts(consumer: Consumer, count: int) -> list[str | None]:
    """The next messages' texts."""
    got = [consumer.receive(timeout=10) for _ in range(count)]
    assert all(got)
    return [m.text for m in got if m]


def reject_next(consumer: Consumer, count: int) -> None:
    for _ in range(count):
        message = consumer.receive(5)
        assert message is not None
        message.reject()


def send_texts(context: Context, *values: str, to: str = "orders") -> None:
    context.producer(to).send_many({"text": value} for value in values)


def texts_now(consumer: Consumer, count: int) -> list[str | None]:
    """The texts of the messages that are there now, each acknowledged; None where there is none."""
    got = []
    for _ in range(count):
        message = consumer.receive(timeout=0)
        got.append(message.text if message else None)
        if message:
            message.acknowledge()
    return got
