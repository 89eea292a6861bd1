"""The module file: the destinations of a domain as YAML, checked strictly, applied to a root (C3, C14, C16).

    destinations:
      orders: {kind: distributed-queue, members: 4, maxMessageSize: 1 MiB}
      prices: {kind: topic, retention: 1 day}
    store: file                     # optional: file (beside the tables), an absolute path or a URI

Every violation is a ModuleFileError that names file, line, key, value and what is allowed. Nothing of the root is
touched before the whole file is found right.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_jms.core.destination import DURABILITIES, KINDS, MAX_MEMBERS, Destination, check_name
from spark_jms.core.duration import parse_duration_ms
from spark_jms.core.routing import POLICIES
from spark_jms.errors import ModuleFileError
from spark_jms.module_tree import Node, describe, from_dict, from_text

if TYPE_CHECKING:
    from spark_jms.log.domain import Change
    from spark_jms.store import Store

MAX_FILE_BYTES = 2**20
MAX_MESSAGE_BYTES = 2**30
MAX_WEIGHT = 1_000_000
_DAY_MS = 86_400_000
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*\Z")
_SIZE_UNITS = {"": 1, "b": 1, "kb": 1000, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
_WHOLE = re.compile(r"-?(0|[1-9]\d*)\Z")
_STORE_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


@dataclass(frozen=True)
class Module:
    """A module file that is right. `store` None: as the domain has it, or `file` for a new one."""

    destinations: list[Destination]
    store: str | None = None


# -- applying ----------------------------------------------------------------------------------------------------------
def apply(root: str | os.PathLike[str], module: str | os.PathLike[str] | Mapping[str, Any]) -> list[Change]:
    """Make the domain at `root` as the module file (or the same as a dict) says; returns what happened to each.

    Applying again changes nothing. Members may be added while jobs run. Members go only when they are empty
    (MemberRemovalError). Destinations that are not declared stay as they are.
    """
    declared = load_module(module)
    from spark_jms.log.domain import apply_destinations, create_domain

    domain = create_domain(os.fspath(root), declared.store)
    with ExitStack() as stack:
        opened: list[Store] = []

        def empty(destination: str, member: int) -> bool:
            from spark_jms.claims import views

            if not opened:
                opened.append(stack.enter_context(views.opened_store(domain)))
            return views.is_empty(domain, opened[0], destination, member)

        return apply_destinations(domain, declared.destinations, empty)


# -- reading -----------------------------------------------------------------------------------------------------------
def load_module(module: str | os.PathLike[str] | Mapping[str, Any]) -> Module:
    """Raises ModuleFileError; see the top of the file."""
    if isinstance(module, Mapping):
        return _Reader("module").module(from_dict("module", module))
    path = os.fspath(module)
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ModuleFileError(f"the module file {path} cannot be read: {error.strerror or error}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ModuleFileError(
            f"{path}: the module file has more than {MAX_FILE_BYTES // 2**20} MiB: is this the right file?"
        )
    return _Reader(path).module(from_text(path, data))


def declare(destination: Destination) -> dict[str, object]:
    """The declaration of a destination as the module file has it: `load_module` of it gives the same again."""
    out: dict[str, object] = {"kind": destination.kind}
    if destination.kind.startswith("distributed-"):
        out["members"] = destination.members
    out["routing"] = destination.routing
    if destination.routing == "weighted":
        out["weights"] = list(destination.weights)
    out["maxMessageSize"] = destination.max_message_bytes
    out["retention"] = destination.retention_ms
    out["inDoubtTimeout"] = destination.in_doubt_timeout_ms
    out["fileGrace"] = destination.file_grace_ms
    out["acknowledgementRetention"] = destination.acknowledgement_retention_ms
    out["durability"] = destination.durability
    return out


class _Reader:
    """Walks the tree of one file. `path` is where a value stands, such as `destinations.orders.members`."""

    def __init__(self, file: str) -> None:
        self._file = file

    def module(self, tree: Node | None) -> Module:
        if tree is None:
            raise ModuleFileError(
                f"{self._file}: the module file is empty: it needs `destinations:` with at least one in it"
            )
        top = self._mapping(tree, "", "`destinations:` and optionally `store:`")
        self._known_keys(top, "", ("destinations", "store"))
        if "destinations" not in top:
            raise self._fail(
                tree, "`destinations:` is missing: it needs at least one destination, such as `orders: {kind: queue}`"
            )
        declared = top["destinations"]
        entries = self._mapping(declared, "destinations", "a mapping of names to declarations")
        if not entries:
            raise self._fail(
                declared, "destinations is empty, but must have at least one, such as `orders: {kind: queue}`"
            )
        destinations = [self._destination(name, node) for name, node in entries.items()]
        return Module(destinations, self._store(top["store"]) if "store" in top else None)

    def _destination(self, name: str, node: Node) -> Destination:
        path = f"destinations.{name}"
        try:
            check_name("destination", name)
        except ModuleFileError as error:
            raise self._fail(node.key or node, str(error)) from error
        keys = self._mapping(node, path, "a mapping with at least `kind`, such as {kind: queue}")
        self._known_keys(keys, path, tuple(_KEYS))
        if "kind" not in keys:
            raise self._fail(node.key or node, f"{path}.kind is missing: it must be one of {', '.join(KINDS)}")
        values = {_KEYS[key][0]: _KEYS[key][1](self, keys[key], f"{path}.{key}") for key in keys}
        self._check_together(path, keys, values)
        try:
            return Destination(name=name, **values)
        except ModuleFileError as error:  # a rule of Destination that has no words of its own here
            raise self._fail(node.key or node, str(error)) from error

    def _check_together(self, path: str, keys: Mapping[str, Node], values: Mapping[str, Any]) -> None:
        kind, members = values["kind"], values.get("members", 1)
        if members > 1 and not kind.startswith("distributed-"):
            allowed = f"1, because a {kind} has one member (a distributed-{kind} may have up to {MAX_MEMBERS})"
            raise self._bad(keys["members"], f"{path}.members", allowed)
        routing = values.get("routing", "round-robin")
        if routing == "weighted" and "weights" not in keys:
            raise self._fail(
                keys["routing"],
                f"{path}.weights is missing: routing weighted needs {members} weight(s), one for each member",
            )
        if "weights" not in keys:
            return
        weights = values["weights"]
        if routing != "weighted":
            raise self._fail(
                keys["weights"],
                f"{path}.weights is {list(weights)}, but routing is {routing}: weights go with routing: weighted",
            )
        if len(weights) != members or not sum(weights):
            raise self._bad(
                keys["weights"], f"{path}.weights", f"a list of {members} weight(s), one for each member, not all 0"
            )

    # -- kinds of values ------------------------------------------------------------------------------------------
    def _kind(self, node: Node, path: str) -> str:
        return self._choice(node, path, KINDS)

    def _routing(self, node: Node, path: str) -> str:
        return self._choice(node, path, POLICIES)

    def _choice(self, node: Node, path: str, allowed: Iterable[str]) -> str:
        choices = tuple(allowed)
        if node.kind == "str" and node.value in choices:
            return str(node.value)
        near = difflib.get_close_matches(str(node.value), choices, 1)
        raise self._bad(node, path, f"one of {', '.join(choices)}" + (f" (did you mean {near[0]}?)" if near else ""))

    def _members(self, node: Node, path: str) -> int:
        return self._whole(node, path, 1, MAX_MEMBERS)

    def _weights(self, node: Node, path: str) -> tuple[int, ...]:
        if node.kind != "list":
            raise self._bad(node, path, f"a list of whole numbers of 0 to {MAX_WEIGHT:,}, one for each member")
        return tuple(self._whole(item, f"{path}[{i}]", 0, MAX_WEIGHT) for i, item in enumerate(node.value))

    def _whole(self, node: Node, path: str, low: int, high: int) -> int:
        """Written in plain decimal digits: YAML's 010 (eight) and 1:30 (ninety) are traps."""
        text = str(node.text)
        if node.kind == "int" and _WHOLE.match(text) and len(text) < 20 and low <= int(text) <= high:
            return int(text)
        raise self._bad(node, path, f"a whole number of {low:,} to {high:,}")

    def _size(self, node: Node, path: str) -> int:
        match = _SIZE.match(str(node.text).lower()) if node.kind in ("int", "float", "str") else None
        if match and match[2] in _SIZE_UNITS and len(match[1]) < 20:
            size = float(match[1]) * _SIZE_UNITS[match[2]]
            if size == int(size) and 1 <= size <= MAX_MESSAGE_BYTES:
                return int(size)
        raise self._bad(
            node,
            path,
            "1 byte to 1 GiB, written as a number of bytes or with KB, MB, GB, KiB, MiB or GiB, such as '10 MiB'",
        )

    def _duration(self, node: Node, path: str, most_days: int) -> int:
        try:
            if node.kind in ("int", "float", "str"):
                duration_ms = parse_duration_ms(node.text)
                if 0 <= duration_ms <= most_days * _DAY_MS:
                    return duration_ms
        except ValueError:
            pass
        raise self._bad(
            node, path, f"0 to {most_days:,} days, written with ms, s, m, h or days, such as '30 s' (a bare number: ms)"
        )

    def _retention(self, node: Node, path: str) -> int:
        return self._duration(node, path, 36_500)

    def _in_doubt(self, node: Node, path: str) -> int:
        return self._duration(node, path, 30)

    def _durability(self, node: Node, path: str) -> str:
        return self._choice(node, path, DURABILITIES)

    def _grace(self, node: Node, path: str) -> int:
        return self._duration(node, path, 365)

    def _store(self, node: Node) -> str:
        from spark_jms.store.uri import SCHEMES

        allowed = f"file (beside the tables), an absolute path, or a URI with {', '.join(f'{s}:' for s in SCHEMES)}"
        if node.kind != "str" or not str(node.value).strip():
            raise self._bad(node, "store", allowed)
        uri = str(node.value)
        scheme = _STORE_SCHEME.match(uri)
        if uri == "file" or os.path.isabs(uri) or (scheme and scheme[1].lower() in SCHEMES):
            return uri
        raise self._bad(node, "store", allowed)

    # -- shapes and errors ----------------------------------------------------------------------------------------
    def _mapping(self, node: Node, path: str, allowed: str) -> dict[str, Node]:
        if node.kind != "dict":
            raise self._bad(node, path or "the module file", allowed)
        value: dict[str, Node] = node.value
        return value

    def _known_keys(self, keys: Mapping[str, Node], path: str, allowed: tuple[str, ...]) -> None:
        for key, node in keys.items():
            if key not in allowed:
                near = difflib.get_close_matches(key.lower(), [a.lower() for a in allowed], 1)
                meant = next((a for a in allowed if near and a.lower() == near[0]), None)
                raise self._fail(
                    node.key or node,
                    f"unknown key {key!r}{f' in {path}' if path else ''}: "
                    f"{f'did you mean {meant!r}? ' if meant else ''}allowed are {', '.join(allowed)}",
                )

    def _bad(self, node: Node, path: str, allowed: str) -> ModuleFileError:
        return self._fail(node, f"{path} is {describe(node)}, but must be {allowed}")

    def _fail(self, node: Node, message: str) -> ModuleFileError:
        return ModuleFileError(f"{self._file}{f':{node.line}' if node.line else ''}: {message}")


_KEYS: dict[str, tuple[str, Callable[[_Reader, Node, str], Any]]] = {
    "kind": ("kind", _Reader._kind),
    "members": ("members", _Reader._members),
    "routing": ("routing", _Reader._routing),
    "weights": ("weights", _Reader._weights),
    "maxMessageSize": ("max_message_bytes", _Reader._size),
    "retention": ("retention_ms", _Reader._retention),
    "inDoubtTimeout": ("in_doubt_timeout_ms", _Reader._in_doubt),
    "fileGrace": ("file_grace_ms", _Reader._grace),
    "acknowledgementRetention": ("acknowledgement_retention_ms", _Reader._retention),
    "durability": ("durability", _Reader._durability),
}
