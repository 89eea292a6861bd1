"""`jmsq send`, `receive`, `browse`: messages from and to a shell, through the client.

Features: C11, C14 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from spark_jms.cli.command import DURATION, CommandSettings, command, destination_argument

if TYPE_CHECKING:
    from spark_jms.cli.command import Output
    from spark_jms.client import Consumer, Context, Message, MessageArguments, Producer, PropertyValue
    from spark_jms.core.destinations.subscriptions import ClientIdPolicy

EXIT_NOTHING = 3
_CHUNK_MESSAGES = 1000
_READ_BYTES = 4 * 2**20
_MAX_LINE_BYTES = 2**30
_ACKNOWLEDGE_EVERY = 500  # messages, or
_ACKNOWLEDGE_EVERY_S = 1.0
_TABLE_LIMIT = 100
_CLIPPED_CHARS = 80
_WHOLE_BITS = {"byte": 8, "short": 16, "int": 32, "long": 64}
_TYPES = ("string", "boolean", *_WHOLE_BITS, "float", "double")


def _connect(
    settings: CommandSettings,
    factory: str | None,
    client_id: str | None = None,
    policy: ClientIdPolicy = "restricted",
) -> Context:
    from spark_jms.client import connect

    return connect(
        settings.root,
        housekeeping=False,
        client_id=client_id,
        client_id_policy=policy,
        connection_factory=factory,
    )


def _factory_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--connection-factory", "factory", metavar="NAME", help="Choose members by this connection factory."
    )(function)


# -- send -------------------------------------------------------------------------------------------------------------
def _property(value: str) -> tuple[str, PropertyValue]:
    left, equals, text = value.partition("=")
    name, colon, kind = left.partition(":")
    if not equals or not name or (colon and kind not in _TYPES):
        raise click.BadParameter(f"{value!r} is not NAME=VALUE or NAME:TYPE=VALUE, TYPE one of {', '.join(_TYPES)}")
    try:
        return name, _typed(kind or "string", text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not of type {kind} (property {name})") from None


def _typed(kind: str, text: str) -> PropertyValue:
    if kind == "string":
        return text
    if kind == "boolean":
        if text.lower() not in ("true", "false"):
            raise ValueError(kind)
        return text.lower() == "true"
    if kind in ("float", "double"):
        return float(text)
    number, bits = int(text), _WHOLE_BITS[kind]
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(kind)
    return number


@command("send", short_help="Send messages.")
@destination_argument
@click.option("--text", "texts", multiple=True, help="A text message. Repeatable: one message each.")
@click.option(
    "--file", "file", type=click.File("rb"), metavar="FILE", help="A file as one text message ('-': standard input)."
)
@click.option("--binary", is_flag=True, help="With --file: send its bytes as a binary body.")
@click.option("--stdin", "lines", is_flag=True, help="Every line of standard input as a text message.")
@click.option(
    "-p",
    "--property",
    "properties",
    multiple=True,
    type=_property,
    metavar="NAME[:TYPE]=VALUE",
    help=f"A property; TYPE is {', '.join(_TYPES)}. Repeatable.",
)
@click.option("--group", "group_id", help="Unit of order (JMSXGroupID).")
@click.option("--priority", type=click.IntRange(0, 9), help="0 to 9; 4 if not given.")
@click.option("--correlation-id", help="JMSCorrelationID.")
@click.option("--type", "type_", help="JMSType.")
@click.option("--reply-to", help="JMSReplyTo.")
@click.option("--time-to-live", type=DURATION, help="Expire after this time, such as 10min.")
@click.option("--delay", type=DURATION, help="Deliver after this time.")
@click.option("--count", type=click.IntRange(1), default=1, help="Send the message this many times.")
@click.option("--send-timeout", type=DURATION, help="Wait so long for room, or while insertion is paused.")
@_factory_option
@click.option("--unit-of-work", "unit", metavar="NAME", help="Send all messages as this unit of work, in one commit.")
@click.option(
    "--producer-id",
    metavar="ID",
    help="With --stdin: number the lines, and skip those that an earlier run with this id has sent.",
)
def send(
    settings: CommandSettings,
    destination: str,
    texts: tuple[str, ...],
    file: BinaryIO | None,
    binary: bool,
    lines: bool,
    properties: tuple[tuple[str, PropertyValue], ...],
    group_id: str | None,
    priority: int | None,
    correlation_id: str | None,
    type_: str | None,
    reply_to: str | None,
    time_to_live: float | None,
    delay: float | None,
    count: int,
    send_timeout: float | None,
    factory: str | None,
    unit: str | None,
    producer_id: str | None,
) -> None:
    """Send messages: each --text, one --file, or every line of standard input with --stdin.

    Exit code 0 means that all of them are in the table. The command sends many messages in chunks, one commit each; if a
    chunk fails, the error says how many messages were sent before it. With --producer-id a command that failed or was killed can
    be repeated with the same input: each line is sent once.
    """
    if [bool(texts), file is not None, lines].count(True) != 1:
        raise click.UsageError("give one of --text, --file and --stdin")
    if lines and count != 1:
        raise click.UsageError("--count does not go with --stdin")
    if binary and file is None:
        raise click.UsageError("--binary goes with --file")
    if producer_id is not None and (not lines or unit is not None):
        raise click.UsageError("--producer-id goes with --stdin, and not with --unit-of-work")
    headers: MessageArguments = {
        "properties": dict(properties),
        "group_id": group_id,
        "priority": priority,
        "correlation_id": correlation_id,
        "type": type_,
        "reply_to": reply_to,
        "time_to_live": time_to_live,
        "delay": delay,
    }
    bodies: list[MessageArguments] = [{"text": text} for text in texts] if file is None else [_file_body(file, binary)]
    messages: list[MessageArguments] = [{**headers, **body} for body in bodies]
    with _connect(settings, factory) as context:
        producer = context.producer(destination, send_timeout=send_timeout, producer_id=producer_id)
        groups = _lines(sys.stdin.buffer, headers) if lines else _repeated(messages, count)
        if unit is not None:
            sent_unit = producer.send_unit_of_work(itertools.chain.from_iterable(groups), unit)
            _report_sent(settings, destination, sent_unit.messages, {"commits": sent_unit.commits})
            return
        if not lines and len(messages) * count == 1:
            sent = producer.send(**messages[0])  # type: ignore[call-overload]  # one body, checked above
            _report_sent(
                settings,
                destination,
                1,
                {"message_id": sent.message_id, "member": sent.member, "sequence": sent.sequence},
            )
            return
        with settings.out.progress(f"sending to {destination}", None if lines else len(messages) * count) as bar:
            number = None if producer_id is None else 1
            for part in groups:
                bar.advance(producer.send_many(part, chunk_messages=_CHUNK_MESSAGES, sequence=number).messages)
                number = None if number is None else number + len(part)
        _report_sent(settings, destination, bar.done, _counts(producer))


def _file_body(file: BinaryIO, binary: bool) -> MessageArguments:
    data = file.read()
    if binary:
        return {"body": data}
    try:
        return {"text": data.decode()}
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{file.name} is not UTF-8 text (byte {error.start}): send it with --binary") from error


def _repeated(messages: list[MessageArguments], count: int) -> Iterator[list[MessageArguments]]:
    everything = itertools.chain.from_iterable(itertools.repeat(messages, count))
    while chunk := list(itertools.islice(everything, _CHUNK_MESSAGES)):
        yield chunk


def _lines(source: BinaryIO, headers: MessageArguments) -> Iterator[list[MessageArguments]]:
    """Groups of lines: everything that can be read without waiting, so that a slow pipe's lines are sent at once."""
    rest, number = b"", 0
    read = getattr(source, "read1", source.read)
    while data := read(_READ_BYTES):
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > _MAX_LINE_BYTES:
            raise click.UsageError(
                f"line {number + len(whole) + 1} of standard input is longer than {_MAX_LINE_BYTES} bytes"
            )
        if whole:
            yield [{"text": _decoded(line, number + i + 1), **headers} for i, line in enumerate(whole)]
            number += len(whole)
    if rest:
        yield [{"text": _decoded(rest, number + 1), **headers}]


def _decoded(line: bytes, number: int) -> str:
    try:
        return line.removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise click.UsageError(
            f"line {number} of standard input is not UTF-8 text; earlier groups of lines are sent"
        ) from error


def _counts(producer: Producer) -> dict[str, Any]:
    counts = producer.statistics()
    return {"commits": counts.commits, **({} if producer.producer_id is None else {"duplicates": counts.duplicates})}


def _report_sent(settings: CommandSettings, destination: str, count: int, more: dict[str, Any]) -> None:
    if settings.as_json:
        settings.out.document({"destination": destination, "sent": count, **more})
    elif "message_id" in more:
        settings.out.say(
            f"sent {more['message_id']} to {destination}, member {more['member']}, sequence {more['sequence']}"
        )
    else:
        skipped = f"; {more['duplicates']:,} line(s) were sent before" if more.get("duplicates") else ""
        settings.out.say(f"sent {count:,} message(s) to {destination}{skipped}")


# -- receive ----------------------------------------------------------------------------------------------------------
@command("receive", short_help="Receive and consume messages.")
@destination_argument
@click.option(
    "--subscription",
    help="A topic's subscription; a new one is created as durable. Without it: one of this command alone, not durable.",
)
@click.option("--non-durable", is_flag=True, help="The subscription ends with its last consumer.")
@click.option(
    "--client-id", metavar="ID", help="The subscription belongs to this client id, which only this command may use."
)
@click.option("--unrestricted", is_flag=True, help="With --client-id: any number of connections may use the id.")
@click.option("--exclusive", is_flag=True, help="No other consumer may use the subscription meanwhile.")
@click.option(
    "--starting-position",
    metavar="POSITION",
    help="Where a new subscription starts: latest (default), earliest, or as startingPosition.",
)
@click.option("--selector", help="A JMS selector, such as \"color = 'red'\".")
@click.option(
    "--max", "limit", type=click.IntRange(0), default=1, show_default=True, help="Stop after this many; 0: never."
)
@click.option(
    "--timeout",
    "timeout_s",
    type=DURATION,
    default="5s",
    show_default=True,
    help="How long to wait for each message; 0: do not wait.",
)
@click.option("--skip-lost", is_flag=True, help="Skip messages that were deleted from the table, with a warning.")
@click.option("--pin", is_flag=True, help="Of a queue: receive from one member, chosen at the start.")
@_factory_option
@click.option("--ack/--no-ack", default=True, help="--no-ack releases the messages at the end, flagged as redelivered.")
def receive(
    settings: CommandSettings,
    destination: str,
    subscription: str | None,
    non_durable: bool,
    client_id: str | None,
    unrestricted: bool,
    exclusive: bool,
    starting_position: str | None,
    selector: str | None,
    limit: int,
    timeout_s: float,
    skip_lost: bool,
    pin: bool,
    factory: str | None,
    ack: bool,
) -> int:
    """Receive and consume messages. The command prints a message before it acknowledges it. A unit of work counts as
    one message.

    Exit code 3: no message arrived in time.
    """
    if unrestricted and client_id is None:
        raise click.UsageError("--unrestricted goes with --client-id")
    policy: ClientIdPolicy = "unrestricted" if unrestricted else "restricted"
    received = 0
    prefetch = min(limit or _ACKNOWLEDGE_EVERY, _ACKNOWLEDGE_EVERY)
    out = settings.out
    with _connect(settings, factory, client_id, policy) as context:
        consumer = context.consumer(
            destination,
            selector=selector,
            subscription=subscription,
            durable=False if non_durable else None,
            sharing="exclusive" if exclusive else "sharable",
            starting_position=starting_position,
            prefetch=prefetch,
            pin=pin or None,
            fail_on_data_loss=not skip_lost,
        )
        for message in _received(consumer, limit, timeout_s, ack):
            _print_message(out, message)
            received += 1
    if not received and not settings.as_json:
        click.echo(f"jmsq: no message arrived from {destination} within {timeout_s:g} s", err=True)
    return 0 if received else EXIT_NOTHING


def _received(consumer: Consumer, limit: int, timeout_s: float, ack: bool) -> Iterator[Message]:
    """Messages as they arrive. Acknowledges the ones the caller has finished: in groups, and always before waiting."""
    newest: Message | None = None
    count = waiting = 0
    since_s = time.monotonic()
    while not limit or count < limit:
        message = consumer.receive(0)
        if message is None and newest is not None:
            newest.acknowledge()
            newest, waiting = None, 0
        if message is None:
            message = consumer.receive(timeout_s) if timeout_s else None
        if message is None:
            return
        yield message
        count += 1
        if ack:
            newest, waiting = message, waiting + 1
            if waiting >= _ACKNOWLEDGE_EVERY or time.monotonic() - since_s >= _ACKNOWLEDGE_EVERY_S:
                newest.acknowledge()
                newest, waiting, since_s = None, 0, time.monotonic()
    if newest is not None:
        newest.acknowledge()


def _print_message(out: Output, message: Message) -> None:
    from spark_jms.client.messages.encoding import with_legible_body
    from spark_jms.core.ordering.units_of_work import UNIT

    message = with_legible_body(message)
    if out.as_json:
        out.record(message.to_dict())
        return
    if message.unit_of_work:
        out.say(f"== unit of work {message.properties[UNIT]}, {len(message.unit_of_work):,} message(s)")
        for part in message.unit_of_work:
            _print_message(out, part)
        return
    headers = [f"member {message.member}", f"sequence {message.sequence}", message.message_id]
    for name, value in (
        ("group", message.group_id),
        ("type", message.type),
        ("correlation", message.correlation_id),
        ("reply to", message.reply_to),
    ):
        if value is not None:
            headers.append(f"{name} {value}")
    headers += [f"{name}={value}" for name, value in message.properties.items()]
    if message.redelivered:
        headers.append(f"redelivered (delivery {message.delivery_count})")
    out.say(f"-- {'  '.join(headers)}")
    out.say(_body(message))


def _body(message: Message) -> str:
    if message.map is not None:
        return ", ".join(f"{name}={value!r}" for name, value in message.map.items())
    if message.body is not None:
        shown = message.body[: _CLIPPED_CHARS // 2].hex()
        return f"{len(message.body):,} bytes: {shown}{'…' if len(message.body) > _CLIPPED_CHARS // 2 else ''}"
    return message.text or ""


# -- browse -----------------------------------------------------------------------------------------------------------
@command("browse", short_help="Look at messages without consuming them.")
@destination_argument
@click.option("--subscription", help="The messages this durable subscription of a topic has not finished.")
@click.option("--selector", help="A JMS selector, such as \"color = 'red'\".")
@click.option(
    "--limit",
    type=click.IntRange(0),
    help=f"Stop after this many; 0: never. Default: {_TABLE_LIMIT}, with --json no limit.",
)
@click.option("--pin", is_flag=True, help="Of a queue: show one member, chosen at the start.")
@_factory_option
@click.option("--all", "everything", is_flag=True, help="Include finished messages that are still in the table.")
def browse(
    settings: CommandSettings,
    destination: str,
    subscription: str | None,
    selector: str | None,
    limit: int | None,
    pin: bool,
    factory: str | None,
    everything: bool,
) -> None:
    """Look at unfinished messages without consuming them, including claimed and delayed ones.

    For a topic without --subscription: everything still in the table.
    """
    if everything and subscription:
        raise click.UsageError("--all shows every message of the table regardless of subscriptions: use one of the two")
    from spark_jms.client.messages.encoding import with_legible_body

    out = settings.out
    with _connect(settings, factory) as context:
        browser = context.browser(
            destination, selector=selector, subscription=subscription, include_finished=everything, pin=pin or None
        )
        found = map(with_legible_body, browser)
        if out.as_json:
            for message in itertools.islice(found, limit or None):
                out.record(message.to_dict())
            return
        shown = _TABLE_LIMIT if limit is None else limit
        messages = list(itertools.islice(found, shown + 1 if shown else None))
        _table(
            out,
            messages[:shown] if shown else messages,
            f"{destination} has no such messages" if selector else f"{destination} is empty",
        )
        if shown and len(messages) > shown:
            out.say("more messages follow: --limit 0 shows all, --json is for scripts")


def _table(out: Output, messages: Iterable[Message], empty: str) -> None:
    from spark_jms.claims.upkeep.views import moment
    from spark_jms.cli.command import clip

    rows = [
        (
            m.member,
            m.sequence,
            moment(m.timestamp_ms),
            m.priority,
            m.group_id,
            m.type,
            " ".join(f"{name}={value}" for name, value in m.properties.items()),
            m.delivery_count if m.redelivered else None,
            clip(_body(m), _CLIPPED_CHARS),
        )
        for m in messages
    ]
    columns = ("member", "sequence", "sent", "priority", "group", "type", "properties", "delivery", "body")
    out.table("", columns, rows, empty)
