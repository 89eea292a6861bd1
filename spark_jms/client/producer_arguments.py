"""What an application gives a producer, checked: a template, chunks of messages, a transaction.

Features: C11 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from spark_jms.client.columns import Item, item_bytes, to_columns
from spark_jms.client.message import Message
from spark_jms.errors import DuplicateTransactionError, MessageFormatError
from spark_jms.log.send import TransactionId
from spark_jms.log.storage import now_ms

CHUNK_MESSAGES = 1000
CHUNK_BYTES = 32 * 2**20


def checked_template(message: object) -> Message:
    if isinstance(message, Message):
        return message
    if isinstance(message, str):
        raise MessageFormatError("send takes the text of a message by name: send(text=…)")
    if isinstance(message, Mapping):
        raise MessageFormatError("send takes the arguments of a dict by name: send(**…); send_many takes dicts")
    raise MessageFormatError(
        f"send was given an object of type {type(message).__name__}: give a Message, or arguments by name"
    )


def chunks_of(messages: Iterable[Item], limit: int, first: int = 0) -> Iterator[list[Item]]:
    chunk: list[Item] = []
    size = 0
    for number, item in enumerate(messages, first):
        if not isinstance(item, Message | Mapping):
            raise MessageFormatError(
                f"item {number} of send_many is a {type(item).__name__}, but must be a Message or a dict of send's "
                "arguments, such as {'text': …}"
            )
        chunk.append(item)
        size += item_bytes(item)
        if len(chunk) >= limit or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def chunk_columns(chunk: Sequence[Item]) -> pa.RecordBatch:
    return to_columns(chunk, [now_ms()] * len(chunk))


def transaction_id(transaction: tuple[str, int]) -> TransactionId:
    match transaction:
        case (str(app_id), int(version)) if not isinstance(version, bool) and 0 <= version < 2**63 and _is_id(app_id):
            return TransactionId(f"app/{app_id}", version)
    raise DuplicateTransactionError(
        f"transaction is {transaction!r}, but must be (application id, version): text and a whole number from 0 on"
    )


def _is_id(text: str) -> bool:
    """Half a surrogate pair is not: with one in its log no Delta reader opens the table, and Parquet takes no checkpoint of it."""
    return bool(text) and not any("\ud800" <= letter <= "\udfff" for letter in text)
