"""The module file: the destinations of a domain as YAML, checked strictly, applied to a root.

    destinations:
      orders: {kind: distributed-queue, members: 4, maxMessageSize: 1 MiB}
      prices: {kind: topic, retention: 1 day}
    store: file                     # optional: file (beside the tables), an absolute path or a URI
    templates: {big: {maxMessageSize: 64 MiB}}   # optional: values for the destinations that say `template: big`
    expirationScanInterval: 30 s    # optional: the pause between two searches for expired messages; 0: none
    servers: {a: {store: …}}        # optional: servers with stores of their own; a destination names its `servers`
    connectionFactories: {once: {loadBalancingEnabled: false}}   # optional: settings that connections name
    quotas: {small: {messagesMaximum: 10000}}   # optional: limits that destinations name

The keys and their values are declared in `spark_jms/settings`: destination.py, connection_factory.py, quota.py. Every violation
is a ModuleFileError that names file, line, key, value and what is allowed; it is raised before anything changes at the root.

YAML becomes a tree of `Node`s, which know their lines; `_Reader` reads that tree.

Features: C3, C14, C16 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

from spark_jms.core.destinations.destination import Destination, check_name
from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import ModuleFileError, OptionError
from spark_jms.settings.connection_factory import FACTORY_KEYS, ConnectionFactory
from spark_jms.settings.destination import (
    ALL_SERVERS,
    KEYS,
    TEMPLATE_KEYS,
    DestinationSettings,
    DomainSettings,
    ServerSettings,
    contradiction,
    not_for,
)
from spark_jms.settings.quota import QUOTA_KEYS, QuotaSettings
from spark_jms.settings.refused import refusal_of
from spark_jms.settings.table import REQUIRED, Setting, hint, settings_of
from spark_jms.settings.types import Duration, ListOf, NotAllowed, ValueType

if TYPE_CHECKING:
    from spark_jms.log.destinations.declarations import DeclarationChange
    from spark_jms.store import Store

FACTORIES = "connectionFactories"
TEMPLATES = "templates"
QUOTAS = "quotas"
_KEYS_OF = {FACTORIES: FACTORY_KEYS, TEMPLATES: TEMPLATE_KEYS, QUOTAS: QUOTA_KEYS}
SCAN_INTERVAL = "expirationScanInterval"
MAX_FILE_BYTES = 2**20
_STORE_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")
PARTITIONED_BY_DEFAULT = (
    "forwarding is left out, so it is partitioned, where WebLogic's default is replicated; it cannot be changed later"
)
_MAX_SHOWN_CHARS = 80
_MAX_DEPTH = 8
_MAX_NODES = 200_000  # aliases can make a small file a huge tree
_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "duration": timedelta}
_YAML_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Module:
    """A checked module file. `store` None: the domain keeps its store; a new domain gets `file`. `factories`: name -> connection
    factory; `quotas`: name -> quota."""

    destinations: list[Destination]
    store: str | None = None
    servers: Sequence[ServerSettings] = ()
    factories: Mapping[str, ConnectionFactory] = field(default_factory=dict)
    quotas: Mapping[str, QuotaSettings] = field(default_factory=dict)
    expiration_scan_interval_ms: int | None = None  # None: the domain keeps its own
    default_forwarding: frozenset[str] = frozenset()  # topics on servers that leave `forwarding` out


@dataclass(frozen=True)
class Node:
    """`kind` is dict, list, str, int, float, bool, duration (a timedelta), null or other. `text` is a scalar as written,
    `line` is 0 without a file, `value` is a dict[str, Node], a list[Node] or the scalar, `key` the node of its key."""

    kind: str
    value: Any
    line: int = 0
    text: str | None = None
    key: Node | None = None


# -- applying ----------------------------------------------------------------------------------------------------------
def apply(root: str | os.PathLike[str], module: str | os.PathLike[str] | Mapping[str, Any]) -> list[DeclarationChange]:
    """Create and change the destinations of the domain at `root` as the module file (or a dict of the same shape)
    declares them. Returns one DeclarationChange for each destination.

    Applying the same file again changes nothing. Members may be added while jobs run; only empty members may be removed
    (MemberRemovalError). Destinations that the file does not declare stay as they are.
    """
    declared = load_module(module)
    from spark_jms.claims.upkeep.power_loss import ready
    from spark_jms.log.destinations.all_servers import check_still_there, follow_compressions, follow_servers, resolved
    from spark_jms.log.destinations.declarations import apply_destinations
    from spark_jms.log.destinations.domain import create_domain, declare_home, declare_servers
    from spark_jms.log.destinations.limits import follow_server_quotas, follow_sharing

    domain = ready(create_domain(os.fspath(root), declared.store))
    declare_servers(domain, (server for server in declared.servers if server.name != HOME))
    if declared.expiration_scan_interval_ms is not None:
        domain.set_expiration_scan_interval(declared.expiration_scan_interval_ms)
    domain.set_server_scan_intervals({server.name: server.expiration_scan_interval_ms for server in declared.servers})
    for name, factory in declared.factories.items():
        domain.connection_factories.put(name, factory)
    for name, quota in declared.quotas.items():
        domain.quotas.put(name, quota)
        follow_sharing(domain, name)
    for server in declared.servers:
        domain.quotas.put_server(server.name, server.quota)
        if server.name == HOME:
            declare_home(domain, server)
    with ExitStack() as stack:
        opened: list[Store] = []

        def empty(destination: str, member: int) -> bool:
            from spark_jms.claims.upkeep import views

            if not opened:
                opened.append(stack.enter_context(views.opened_store(domain)))
            return views.is_empty(domain, opened[0], destination, member)

        wanted = [resolved(domain, destination) for destination in declared.destinations]
        changes = apply_destinations(domain, wanted, empty)
        for destination in wanted:
            check_still_there(domain, destination)
        followed = {
            change.destination: change for change in follow_servers(domain, {one.name for one in wanted}, empty)
        }
        changes = [followed.get(change.destination, change) for change in changes]
    follow_server_quotas(domain)
    follow_compressions(domain)
    return [_with_forwarding(change, declared.default_forwarding) for change in changes]


def _with_forwarding(change: DeclarationChange, left_out: Collection[str]) -> DeclarationChange:
    """It cannot be changed later, and who knows the texts expects the other value."""
    if change.what != "created" or change.destination not in left_out:
        return change
    return replace(change, detail=f"{change.detail}; {PARTITIONED_BY_DEFAULT}")


# -- reading -----------------------------------------------------------------------------------------------------------
def load_module(module: str | os.PathLike[str] | Mapping[str, Any]) -> Module:
    """Raises ModuleFileError, as described at the top of this file."""
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
    """The settings of a destination as the module file has them, those of its template among them: `load_module` reads them
    back."""
    left_out = {"template"}
    if destination.servers or not destination.kind.startswith("distributed-"):
        left_out.add("members")
    if destination.routing != "weighted":
        left_out.add("weights")
    values = [(row, getattr(destination, row.field)) for name, row in KEYS.items() if name not in left_out]
    written = {row.name: _written(row, value) for row, value in values if value is not None}
    return {**written, "servers": "all"} if destination.follows_servers else written


def _written(row: Setting, value: object) -> object:
    """Durations with their unit, everything else as a plain value."""
    if isinstance(row.type, Duration):
        return row.show(value)
    return list(value) if isinstance(value, tuple) else value


@dataclass(frozen=True)
class _Resource:
    """An entry of `quotas:`, `templates:` or `connectionFactories:`."""

    name: str
    path: str
    node: Node
    keys: Mapping[str, Node]


class _Reader:
    """Reads the tree of one file. `path` is the place of a value, such as `destinations.orders.members`."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._default_forwarding: set[str] = set()

    def module(self, tree: Node | None) -> Module:
        if tree is None:
            raise ModuleFileError(
                f"{self._file}: the module file is empty: it needs `destinations:` with at least one in it"
            )
        top = self._mapping(tree, "", "`destinations:` and optionally `store:`")
        known = ["destinations", *settings_of(DomainSettings), "servers", FACTORIES, TEMPLATES, QUOTAS]
        self._known_keys(top, "", dict.fromkeys(known))
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
        templates = self._templates(top[TEMPLATES]) if TEMPLATES in top else {}
        destinations = [self._destination(name, node, templates) for name, node in entries.items()]
        store = self._store(top["store"], "store") if "store" in top else None
        servers = self._servers(top["servers"]) if "servers" in top else ()
        factories = self._factories(top[FACTORIES]) if FACTORIES in top else {}
        quotas = self._quotas(top[QUOTAS]) if QUOTAS in top else {}
        left_out = frozenset(self._default_forwarding)
        return Module(destinations, store, servers, factories, quotas, self._scan_interval(top), left_out)

    def _scan_interval(self, top: Mapping[str, Node]) -> int | None:
        rows = {SCAN_INTERVAL: settings_of(DomainSettings)[SCAN_INTERVAL]}
        value = self._values({SCAN_INTERVAL: top[SCAN_INTERVAL]}, "", rows) if SCAN_INTERVAL in top else {}
        return next(iter(value.values()), None)

    def _resources(self, node: Node, section: str, what: str, plural: str, example: str) -> Iterator[_Resource]:
        """The named resources of a section, with known keys."""
        for name, entry in self._mapping(node, section, f"a mapping of names to {plural}").items():
            path = f"{section}.{name}"
            self._check_name(what, name, entry)
            keys = self._mapping(entry, path, f"a mapping, such as {example}")
            self._known_keys(keys, path, _KEYS_OF[section])
            yield _Resource(name, path, entry, keys)

    def _quotas(self, node: Node) -> dict[str, QuotaSettings]:
        quotas = {}
        for one in self._resources(node, QUOTAS, "quota", "quotas", "{messagesMaximum: 10000}"):
            quotas[one.name] = QuotaSettings(**self._values(one.keys, one.path, QUOTA_KEYS))
        return quotas

    def _templates(self, node: Node) -> dict[str, Mapping[str, Node]]:
        """By name, the keys of each template. Their values are checked here, and what they contradict in each destination."""
        templates = {}
        for one in self._resources(node, TEMPLATES, "template", "templates", "{retention: 1 day}"):
            self._values(one.keys, one.path, TEMPLATE_KEYS)
            templates[one.name] = one.keys
        return templates

    def _factories(self, node: Node) -> dict[str, ConnectionFactory]:
        factories = {}
        for one in self._resources(
            node, FACTORIES, "connection factory", "connection factories", "{loadBalancingEnabled: false}"
        ):
            try:
                factories[one.name] = ConnectionFactory(**self._values(one.keys, one.path, FACTORY_KEYS))
            except OptionError as error:
                raise self._fail(one.node, f"{one.path}: {error}") from error
        return factories

    def _servers(self, node: Node) -> list[ServerSettings]:
        mapping = self._mapping(node, "servers", "a mapping of names to servers")
        servers = [self._server(name, entry) for name, entry in mapping.items()]
        twice = [
            (a, b) for a, b in combinations(sorted(servers, key=lambda s: s.name), 2) if a.store == b.store != "file"
        ]
        for first, second in twice:
            raise self._fail(
                node, f"servers.{second.name}.store is that of server {first.name}: each server has a store of its own"
            )
        return servers

    def _server(self, name: str, node: Node) -> ServerSettings:
        path = f"servers.{name}"
        self._check_name("server", name, node)
        if name in ALL_SERVERS:
            raise self._fail(
                node.key or node,
                f"{path}: `servers: {name}` of a destination stands for all servers; take another name",
            )
        keys = self._mapping(node, path, "a mapping with `store`, such as {store: file}")
        rows = settings_of(ServerSettings)
        if name == HOME:
            if "store" in keys:
                raise self._fail(
                    node.key or node, f"{path}: {HOME} is the domain's own store, `store:`; take another name"
                )
            rows = {key: row for key, row in rows.items() if key not in ("store", "lease")}
        self._known_keys(keys, path, rows)
        if name != HOME and "store" not in keys:
            raise self._fail(node.key or node, f"{path}.store is missing: it must be file, a path or a URI")
        values = self._values(keys, path, rows)
        store = "file" if name == HOME else self._store(keys["store"], f"{path}.store")
        server = ServerSettings(name, **{**values, "store": store})
        if wrong := server.wrong_thresholds:
            raise self._fail(keys.get(wrong.split(" ")[0], node), f"{path}.{wrong}")
        return server

    def _destination(self, name: str, node: Node, templates: Mapping[str, Mapping[str, Node]]) -> Destination:
        path = f"destinations.{name}"
        self._check_name("destination", name, node)
        own = self._mapping(node, path, "a mapping with at least `kind`, such as {kind: queue}")
        self._known_keys(own, path, KEYS)
        whole = self._template_of(own, path, templates)
        template = self._fitting(whole, own, path)
        inherited = template.keys() - own.keys()
        keys = {k: n for k, n in {**template, **own}.items() if not (n.kind == "null" and k in whole)}
        for key, row in KEYS.items():
            if row.default is REQUIRED and key not in keys:
                raise self._fail(node.key or node, f"{path}.{key} is missing: it must be {row.type.allowed}")
        values = self._values(keys, path, KEYS)
        if values.get("servers") and "members" not in keys:
            values["members"] = len(values["servers"])
        if found := contradiction(DestinationSettings(name=name, **values)):
            key, said = found
            origin = f" ({key} is from template {own['template'].value})" if key in inherited else ""
            raise self._fail(keys.get(key, node), f"{path}.{said}{origin}")
        made = Destination(name=name, inherited=frozenset(inherited), **values)
        if made.kind == "distributed-topic" and made.servers and "forwarding" not in keys:
            self._default_forwarding.add(name)
        return made

    def _fitting(self, template: Mapping[str, Node], own: Mapping[str, Node], path: str) -> Mapping[str, Node]:
        """Without the values for another kind of destination: one template serves queues and topics."""
        kind = own.get("kind") or template.get("kind")
        others = not_for(self._value(kind, f"{path}.kind", KEYS["kind"].type)) if kind is not None and template else ()
        return {
            key: node
            for key, node in template.items()
            if key not in others or self._value(node, f"{path}.{key}", KEYS[key].type) == KEYS[key].default
        }

    def _template_of(
        self, own: Mapping[str, Node], path: str, templates: Mapping[str, Mapping[str, Node]]
    ) -> Mapping[str, Node]:
        if "template" not in own:
            return {}
        name = self._value(own["template"], f"{path}.template", KEYS["template"].type)
        if name not in templates:
            there = f"{hint(name, templates)}the file has {', '.join(templates)}" if templates else "the file has none"
            raise self._fail(
                own["template"], f"{path}.template is {name!r}, but must be one of `{TEMPLATES}:`: {there}"
            )
        return templates[name]

    def _values(self, keys: Mapping[str, Node], path: str, rows: Mapping[str, Setting]) -> dict[str, Any]:
        """By field, those that are given."""
        given = [(row, keys[key]) for key, row in rows.items() if key in keys]
        return {row.field: self._value(node, f"{path}.{row.name}".lstrip("."), row.type) for row, node in given}

    def _value(self, node: Node, path: str, type: ValueType) -> Any:
        if isinstance(type, ListOf) and node.kind == "list":
            return tuple(self._value(item, f"{path}[{i}]", type.item) for i, item in enumerate(node.value))
        allowed = type.allowed
        if node.kind in type.yaml:
            try:
                return type.read(node.value if node.kind == "duration" else node.text)
            except NotAllowed as error:
                allowed = error.allowed
        raise self._bad(node, path, allowed)

    def _store(self, node: Node, path: str) -> str:
        from spark_jms.store.errors import shown_uri
        from spark_jms.store.kinds.opening import SCHEMES

        allowed = f"file (beside the tables), an absolute path, or a URI with {', '.join(f'{s}:' for s in SCHEMES)}"
        if node.kind != "str" or not str(node.value).strip():
            raise self._bad(node, path, allowed)
        uri = str(node.value)
        scheme = _STORE_SCHEME.match(uri)
        if uri == "file" or os.path.isabs(uri) or (scheme and scheme[1].lower() in SCHEMES):
            return uri
        raise self._fail(node, f"{path} is {shown_uri(describe(node))}, but must be {allowed}")

    # -- shapes and errors ----------------------------------------------------------------------------------------
    def _mapping(self, node: Node, path: str, allowed: str) -> dict[str, Node]:
        if node.kind != "dict":
            raise self._bad(node, path or "the module file", allowed)
        value: dict[str, Node] = node.value
        return value

    def _check_name(self, what: str, name: str, node: Node) -> None:
        try:
            check_name(what, name)
        except ModuleFileError as error:
            raise self._fail(node.key or node, str(error)) from error

    def _known_keys(self, keys: Mapping[str, Node], path: str, known: Mapping[str, object]) -> None:
        for key, node in keys.items():
            if key not in known:
                where = f" in {path}" if path else ""
                why = f"it is refused: {reason}; " if (reason := refusal_of(key)) else hint(key, known)
                said = f"unknown key {key!r}{where}: {why}allowed are {', '.join(known)}"
                raise self._fail(node.key or node, said)

    def _bad(self, node: Node, path: str, allowed: str) -> ModuleFileError:
        return self._fail(node, f"{path} is {describe(node)}, but must be {allowed}")

    def _fail(self, node: Node, message: str) -> ModuleFileError:
        return ModuleFileError(f"{self._file}{f':{node.line}' if node.line else ''}: {message}")


# -- a module file as a tree of nodes with their lines -----------------------------------------------------------------
def describe(node: Node) -> str:
    """A value in an error message."""
    if node.kind == "dict":
        return "a mapping"
    if node.kind == "list":
        shown = f"[{', '.join(describe(item) for item in node.value)}]"
    elif node.kind == "null":
        return "empty"
    else:
        shown = repr(node.value) if node.kind == "str" else str(node.text)
    return shown if len(shown) <= _MAX_SHOWN_CHARS else shown[:_MAX_SHOWN_CHARS] + "…"


def from_text(file: str, data: bytes) -> Node | None:
    """None for an empty file. Raises ModuleFileError with the line when the file is not YAML."""
    import yaml

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ModuleFileError(f"{file}:{line}: byte {error.start} is not UTF-8: save the file as UTF-8 text") from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None or _is_null(root) else _from_yaml(file, root, 0, itertools.count(1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ModuleFileError(f"{file}:{mark.line + 1 if mark else 1}: this is not valid YAML: {what}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, int(error.position)) + 1
        raise ModuleFileError(
            f"{file}:{line}: this is not valid YAML: {error.reason} (character {error.character!r})"
        ) from error
    except RecursionError as error:
        raise ModuleFileError(f"{file}: this is not valid YAML: it is nested too deeply") from error


def _is_null(node: Any) -> bool:
    return bool(node.tag == _YAML_TAG + "null")


def _from_yaml(file: str, node: Any, depth: int, nodes: Iterator[int]) -> Node:
    import yaml

    line = node.start_mark.line + 1
    if depth > _MAX_DEPTH:
        raise ModuleFileError(
            f"{file}:{line}: values are nested more than {_MAX_DEPTH} deep; a module file needs no more than 4"
        )
    if next(nodes) > _MAX_NODES:
        raise ModuleFileError(f"{file}:{line}: the file has more than {_MAX_NODES:,} values: is this the right file?")
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = _key(file, key_node)
            if key.value in entries:
                first = entries[key.value].key
                before = f" (first in line {first.line})" if first else ""
                raise ModuleFileError(f"{file}:{key.line}: key {key.value!r} is given twice{before}: keep one")
            value = _from_yaml(file, value_node, depth + 1, nodes)
            entries[str(key.value)] = Node(value.kind, value.value, value.line, value.text, key)
        return Node("dict", entries, line)
    if isinstance(node, yaml.SequenceNode):
        return Node("list", [_from_yaml(file, item, depth + 1, nodes) for item in node.value], line)
    return Node(_kind_of(node), node.value, line, node.value)


def _kind_of(scalar: Any) -> str:
    kind = str(scalar.tag).removeprefix(_YAML_TAG)
    return kind if kind in ("str", "int", "float", "bool", "null") else "other"


def _key(file: str, node: Any) -> Node:
    line = node.start_mark.line + 1
    kind = _kind_of(node) if isinstance(node.value, str) else "other"
    if kind != "str":
        shown = f"{node.value!r} is read by YAML as {kind}" if kind != "other" else "this is not a name"
        raise ModuleFileError(
            f"{file}:{line}: a key must be text, but {shown}: write it in quotes, or choose another name"
        )
    return Node("str", node.value, line, node.value)


def from_dict(file: str, value: object, depth: int = 0) -> Node:
    """The same tree made from Python values, without lines."""
    if depth > _MAX_DEPTH:
        raise ModuleFileError(f"{file}: values are nested more than {_MAX_DEPTH} deep; a module needs no more than 4")
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str)]
        if bad:
            raise ModuleFileError(f"{file}: a key must be text, not {bad[0]!r}")
        return Node("dict", {key: from_dict(file, inner, depth + 1) for key, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return Node("list", [from_dict(file, item, depth + 1) for item in value])
    if value is None:
        return Node("null", None)
    kind = next((kind for kind, type in _KINDS.items() if isinstance(value, type)), "other")
    return Node(kind, value, text=str(value))
