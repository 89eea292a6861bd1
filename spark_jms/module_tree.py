"""A module file as a tree of nodes with their lines: the step between YAML and `spark_jms.module`.

Features: C3 (docs/FEATURES.md)
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from spark_jms.errors import ModuleFileError

_MAX_SHOWN_CHARS = 80
_MAX_DEPTH = 8
_MAX_NODES = 200_000  # aliases can make a small file a huge tree
_KINDS = {"bool": bool, "int": int, "float": float, "str": str, "duration": timedelta}
_YAML_TAG = "tag:yaml.org,2002:"


@dataclass(frozen=True)
class Node:
    """`kind` is dict, list, str, int, float, bool, duration (a timedelta), null or other. `text` is a scalar as written,
    `line` is 0 without a file, `value` is a dict[str, Node], a list[Node] or the scalar, `key` the node of its key."""

    kind: str
    value: Any
    line: int = 0
    text: str | None = None
    key: Node | None = None


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
