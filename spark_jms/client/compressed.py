"""A received message whose body is compressed until the application reads it.

Features: T8 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from spark_jms.client.message import MapValue, Message
from spark_jms.core.body_compression import TEXT, unpack
from spark_jms.errors import MessageFormatError

_BODIES = ("text", "body", "map")
_COMPARED = tuple(field.name for field in fields(Message) if field.compare)


class CompressedMessage(Message):
    """As a Message, and equal to one with the same values. Reading `text`, `body` or `map` decompresses, once; reading headers and
    properties does not. Raises MessageFormatError when the stored body is damaged."""

    __slots__ = ("_as_map", "_kind", "_packed")
    _packed: bytes | None
    _kind: str
    _as_map: Callable[[str], dict[str, Any] | None] | None

    @staticmethod
    def of(
        message: Message, packed: bytes, kind: str, as_map: Callable[[str], dict[str, Any] | None] | None
    ) -> CompressedMessage:
        """`message` has no body. `kind` is that of the packed body; `as_map` reads a text as a map."""
        made = CompressedMessage(*(getattr(message, field.name) for field in fields(message)))
        for name, value in (("_packed", packed), ("_kind", kind), ("_as_map", as_map)):
            object.__setattr__(made, name, value)
        return made

    @property
    def compressed_bytes(self) -> int:
        """Of the body, until the application reads it; then 0."""
        packed = getattr(self, "_packed", None)
        return len(packed) if packed is not None else 0

    def _open(self) -> None:
        packed = getattr(self, "_packed", None)
        if packed is None:
            return
        try:
            data = unpack(packed)
            text, body = (data.decode(), None) if self._kind == TEXT else (None, data)
        except ValueError as error:
            raise MessageFormatError(
                f"message {self.message_id} of {self.destination}, member {self.member}, sequence {self.sequence}: {error}"
            ) from None
        values: Mapping[str, MapValue] | None = self._as_map(text) if text is not None and self._as_map else None
        for name, value in (("text", None if values is not None else text), ("body", body), ("map", values)):
            _SLOTS[name].__set__(self, value)
        object.__setattr__(self, "_packed", None)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in _COMPARED)

    __hash__ = Message.__hash__


_SLOTS: dict[str, Any] = {name: vars(Message)[name] for name in _BODIES}


def _body(name: str) -> Any:
    def read(self: CompressedMessage) -> Any:
        self._open()
        return _SLOTS[name].__get__(self)

    return property(read, lambda self, value: _SLOTS[name].__set__(self, value))


for _name in _BODIES:  # a class body cannot name them: they are fields of the base
    setattr(CompressedMessage, _name, _body(_name))
