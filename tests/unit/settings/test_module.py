"""C3, C16: the parser of the module file names file, line, key, value and allowed values of every violation."""

from __future__ import annotations

import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.errors import ModuleFileError
from spark_jms.module import MAX_FILE_BYTES, declare, load_module
from spark_jms.settings.destination import KINDS, MAX_MEMBERS, MAX_WEIGHT, POLICIES
from tests.harness.project import PROJECT

HEAD = "destinations:\n"
# name -> (the file, the line of the error, parts of its message)
BAD: dict[str, tuple[str, int, list[str]]] = {
    "not a mapping": ("- orders\n", 1, ["the module file is ['orders']", "destinations"]),
    "a single word": ("orders\n", 1, ["the module file is 'orders'"]),
    "no destinations": ("store: file\n", 1, ["`destinations:` is missing"]),
    "empty destinations": ("destinations: {}\n", 1, ["destinations is empty", "at least one"]),
    "null destinations": ("# nothing\ndestinations:\n", 2, ["destinations is empty", "a mapping"]),
    "list of destinations": (f"{HEAD}- orders\n", 2, ["destinations is ['orders']"]),
    "unknown top key": (
        f"{HEAD}  a: {{kind: queue}}\nstores: file\n",
        3,
        ["unknown key 'stores'", "did you mean 'store'?"],
    ),
    "unknown key": (
        f"{HEAD}  orders:\n    kind: queue\n    maxMesageSize: 1 MiB\n",
        4,
        [
            "unknown key 'maxMesageSize' in destinations.orders",
            "did you mean 'maxMessageSize'?",
            "allowed are kind, members",
        ],
    ),
    "key in another case": (f"{HEAD}  orders: {{kind: queue, Retention: 1 h}}\n", 2, ["did you mean 'retention'?"]),
    "unknown key, nothing near": (
        f"{HEAD}  a: {{kind: queue, zzz: 1}}\n",
        2,
        ["unknown key 'zzz' in destinations.a: allowed"],
    ),
    "key twice": (
        f"{HEAD}  a:\n    kind: queue\n    kind: topic\n",
        4,
        ["key 'kind' is given twice (first in line 3)"],
    ),
    "destination twice": (
        f"{HEAD}  a: {{kind: queue}}\n  a: {{kind: topic}}\n",
        3,
        ["key 'a' is given twice (first in line 2)"],
    ),
    "name that is not text": (f"{HEAD}  17: {{kind: queue}}\n", 2, ["'17' is read by YAML as int", "quotes"]),
    "name that is a boolean": (f"{HEAD}  on: {{kind: queue}}\n", 2, ["'on' is read by YAML as bool", "quotes"]),
    "key that is a list": (f"{HEAD}  ? [a]\n  : {{kind: queue}}\n", 2, ["a key must be text"]),
    "wrong name": (
        f"{HEAD}  a/b: {{kind: queue}}\n",
        2,
        ["'a/b' cannot be the name of a destination", "1 to 128 letters"],
    ),
    "hidden name": (f"{HEAD}  _a: {{kind: queue}}\n", 2, ["'_a' cannot be the name"]),
    "no declaration": (
        f"{HEAD}  orders:\n  b: {{kind: queue}}\n",
        2,
        ["destinations.orders is empty", "{kind: queue}"],
    ),
    "kind as declaration": (f"{HEAD}  orders: queue\n", 2, ["destinations.orders is 'queue'", "a mapping"]),
    "no kind": (f"{HEAD}  orders:\n    members: 4\n", 2, ["destinations.orders.kind is missing", *KINDS]),
    "wrong kind": (
        f"{HEAD}  orders:\n    kind: distributed_queue\n",
        3,
        [
            "destinations.orders.kind is 'distributed_queue'",
            "one of queue, distributed-queue",
            "did you mean distributed-queue?",
        ],
    ),
    "kind null": (f"{HEAD}  orders: {{kind: }}\n", 2, ["destinations.orders.kind is empty", "one of queue"]),
    "members 0": (
        f"{HEAD}  a: {{kind: distributed-queue, members: 0}}\n",
        2,
        ["destinations.a.members is 0", "1 to 1,024"],
    ),
    "members too many": (
        f"{HEAD}  a: {{kind: distributed-queue, members: 1025}}\n",
        2,
        ["members is 1025", "1 to 1,024"],
    ),
    "members negative": (
        f"{HEAD}  a: {{kind: distributed-queue, members: -1}}\n",
        2,
        ["members is -1", "whole number"],
    ),
    "members half": (f"{HEAD}  a: {{kind: distributed-queue, members: 1.5}}\n", 2, ["members is 1.5", "whole number"]),
    "members as text": (
        f"{HEAD}  a: {{kind: distributed-queue, members: '4'}}\n",
        2,
        ["members is '4'", "whole number"],
    ),
    "members true": (f"{HEAD}  a: {{kind: distributed-queue, members: yes}}\n", 2, ["members is yes", "whole number"]),
    "members octal": (f"{HEAD}  a: {{kind: distributed-queue, members: 010}}\n", 2, ["members is 010", "whole number"]),
    "members base 60": (
        f"{HEAD}  a: {{kind: distributed-queue, members: 1:30}}\n",
        2,
        ["members is 1:30", "whole number"],
    ),
    "members of a queue": (
        f"{HEAD}  a:\n    kind: queue\n    members: 4\n",
        4,
        ["destinations.a.members is 4", "distributed-queue may have up to 1024"],
    ),
    "wrong routing": (
        f"{HEAD}  a: {{kind: queue, routing: randm}}\n",
        2,
        ["routing is 'randm'", *POLICIES, "did you mean random?"],
    ),
    "weighted without weights": (
        f"{HEAD}  a:\n    kind: distributed-queue\n    members: 2\n    routing: weighted\n",
        5,
        ["destinations.a.weights is missing", "2 weight(s)"],
    ),
    "weights without weighted": (
        f"{HEAD}  a: {{kind: distributed-queue, members: 2, weights: [1, 2]}}\n",
        2,
        ["weights is [1, 2]", "routing is round-robin", "routing: weighted"],
    ),
    "too few weights": (
        f"{HEAD}  a:\n    kind: distributed-queue\n    members: 3\n    routing: weighted\n    weights: [1, 2]\n",
        6,
        ["destinations.a.weights is [1, 2]", "a list of 3 weight(s)"],
    ),
    "weights all 0": (
        f"{HEAD}  a: {{kind: distributed-queue, members: 2, routing: weighted, weights: [0, 0]}}\n",
        2,
        ["weights is [0, 0]", "not all 0"],
    ),
    "weights not a list": (
        f"{HEAD}  a: {{kind: distributed-queue, routing: weighted, weights: 3}}\n",
        2,
        ["weights is 3", "a list"],
    ),
    "wrong weight in the list": (
        f"{HEAD}  a:\n    kind: distributed-queue\n    members: 2\n    routing: weighted\n    weights:\n    - 1\n    - -2\n",
        8,
        ["destinations.a.weights[1] is -2", f"0 to {MAX_WEIGHT:,}"],
    ),
    "size 0": (f"{HEAD}  a: {{kind: queue, maxMessageSize: 0}}\n", 2, ["maxMessageSize is 0", "1 byte to 1 GiB"]),
    "size too large": (
        f"{HEAD}  a: {{kind: queue, maxMessageSize: 2 GiB}}\n",
        2,
        ["maxMessageSize is '2 GiB'", "1 byte to 1 GiB"],
    ),
    "size with another unit": (f"{HEAD}  a: {{kind: queue, maxMessageSize: 1 MBit}}\n", 2, ["is '1 MBit'", "KiB"]),
    "size negative": (f"{HEAD}  a: {{kind: queue, maxMessageSize: -1}}\n", 2, ["maxMessageSize is -1"]),
    "size of half a byte": (f"{HEAD}  a: {{kind: queue, maxMessageSize: 1.5}}\n", 2, ["maxMessageSize is 1.5"]),
    "size a boolean": (f"{HEAD}  a: {{kind: queue, maxMessageSize: true}}\n", 2, ["maxMessageSize is true"]),
    "retention not a duration": (
        f"{HEAD}  a: {{kind: queue, retention: soon}}\n",
        2,
        ["retention is 'soon'", "36,500 days", "'30 s'"],
    ),
    "retention negative": (f"{HEAD}  a: {{kind: queue, retention: -1}}\n", 2, ["retention is -1", "0 to 36,500 days"]),
    "retention base 60": (f"{HEAD}  a: {{kind: queue, retention: 1:30}}\n", 2, ["retention is 1:30"]),
    "retention a date": (f"{HEAD}  a: {{kind: queue, retention: 2026-01-31}}\n", 2, ["retention is 2026-01-31"]),
    "retention null": (f"{HEAD}  a: {{kind: queue, retention: ~}}\n", 2, ["retention is empty"]),
    "in doubt too long": (
        f"{HEAD}  a: {{kind: queue, inDoubtTimeout: 31 days}}\n",
        2,
        ["inDoubtTimeout is '31 days'", "0 to 30 days"],
    ),
    "wrong durability": (
        f"{HEAD}  a: {{kind: queue, durability: disk}}\n",
        2,
        ["durability is 'disk'", "process, power"],
    ),
    "grace too long": (f"{HEAD}  a: {{kind: queue, fileGrace: 366 d}}\n", 2, ["fileGrace is '366 d'", "0 to 365 days"]),
    "store unknown": (
        f"{HEAD}  a: {{kind: queue}}\nstore: ftp://x\n",
        3,
        ["store is 'ftp://x'", "file", "absolute path"],
    ),
    "store relative": (f"{HEAD}  a: {{kind: queue}}\nstore: ./here\n", 3, ["store is './here'", "absolute path"]),
    "store empty": (f"{HEAD}  a: {{kind: queue}}\nstore:\n", 3, ["store is empty", "file"]),
    "store a mapping": (f"{HEAD}  a: {{kind: queue}}\nstore: {{uri: x}}\n", 3, ["store is a mapping"]),
    "syntax": (f"{HEAD}  a: {{kind: queue\n  b: {{kind: queue}}\n", 3, ["not valid YAML"]),
    "tab": (f"{HEAD}\ta: 1\n", 2, ["not valid YAML", "'\\t'"]),
    "control character": (f"{HEAD}  a: \x01\n", 2, ["not valid YAML"]),
    "two documents": (f"{HEAD}  a: {{kind: queue}}\n---\nb: 1\n", 3, ["not valid YAML", "document"]),
    "unknown alias": (f"{HEAD}  a: *b\n", 2, ["not valid YAML", "undefined alias"]),
    "foreign tag": (f"{HEAD}  a: {{kind: !!python/name:os.system x}}\n", 2, ["kind is"]),
    "alias of itself": (f"{HEAD}  a: &a\n    kind: *a\n", 2, ["nested"]),
    "aliases that explode": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n",
        1,
        ["more than 200,000 values"],
    ),
    "too deep": (f"{HEAD}  a: {{kind: {'[' * 20}{']' * 20}}}\n", 2, ["nested more than 8 deep"]),
}


def write(folder: Path, text: str) -> Path:
    file = folder / "module.yaml"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", BAD)
def test_violation_names_file_line_and_allowed_values(tmp_path: Path, name: str) -> None:
    text, line, said = BAD[name]
    file = write(tmp_path, text)
    with pytest.raises(ModuleFileError) as caught:
        load_module(file)
    message = str(caught.value)
    assert message.startswith(f"{file}:{line}: "), message
    for part in said:
        assert part in message
    assert "\n" not in message


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n", "null\n"])
def test_empty_file_is_refused(tmp_path: Path, text: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(ModuleFileError, match=r"module\.yaml: the module file is empty"):
        load_module(file)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModuleFileError, match=r"gone\.yaml cannot be read: No such file"):
        load_module(tmp_path / "gone.yaml")
    with pytest.raises(ModuleFileError, match="cannot be read: Is a directory"):
        load_module(tmp_path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"destinations:\n  caf\xe9: {kind: queue}\n")
    with pytest.raises(ModuleFileError, match=r"binary\.yaml:2: byte 19 is not UTF-8"):
        load_module(binary)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ModuleFileError, match="more than 1 MiB"):
        load_module(large)


def test_every_key_is_read(tmp_path: Path) -> None:
    module = load_module(
        write(
            tmp_path,
            """
store: /srv/jmsq
destinations:
  plain: {kind: queue}
  all:
    kind: distributed-topic
    members: 3
    routing: weighted
    weights: [0, 1, 5]
    maxMessageSize: 512 KiB
    retention: 1.5 days
    inDoubtTimeout: 0
    fileGrace: 250ms
    acknowledgementRetention: 1 day
    durability: power
  "17": {kind: topic, maxMessageSize: 0.5 kib, retention: 30s}
""",
        )
    )
    assert module.store == "/srv/jmsq"
    assert module.destinations == [
        Destination("plain", "queue"),
        Destination(
            "all",
            "distributed-topic",
            3,
            "weighted",
            (0, 1, 5),
            512 * 1024,
            129_600_000,
            0,
            250,
            86_400_000,
            durability="power",
        ),
        Destination("17", "topic", max_message_bytes=512, retention_ms=30_000),
    ]


def test_dict_is_checked_like_a_file() -> None:
    assert load_module({"destinations": {"a": {"kind": "queue"}}}).destinations == [Destination("a", "queue")]
    weighted = {"kind": "distributed-queue", "members": 2, "routing": "weighted", "weights": (1, 2)}
    assert load_module({"destinations": {"a": weighted}}).destinations[0].weights == (1, 2)
    for bad, said in [
        ({}, "`destinations:` is missing"),
        ({"destinations": {1: {"kind": "queue"}}}, "a key must be text, not 1"),
        ({"destinations": {"a": {"kind": "queue", "member": 1}}}, "module: unknown key 'member' in destinations.a"),
        ({"destinations": {"a": {"kind": "distributed-queue", "members": True}}}, "members is True, but must be"),
        ({"destinations": {"a": {"kind": object()}}}, "kind is <object"),
    ]:
        with pytest.raises(ModuleFileError) as caught:
            load_module(bad)
        assert said in str(caught.value)


def test_shipped_module_file_is_valid() -> None:
    module = load_module(PROJECT / "conf" / "jms-module.yaml")
    assert {d.name: d.members for d in module.destinations} == {"orders": 4, "prices": 1, "invoices": 1}


@st.composite
def destinations(draw: st.DrawFn) -> Destination:
    kind = draw(st.sampled_from([*KINDS]))
    members = draw(st.integers(1, MAX_MEMBERS if draw(st.booleans()) else 5)) if kind.startswith("distributed-") else 1
    routing = draw(st.sampled_from([*POLICIES]))
    weights: tuple[int, ...] = ()
    if routing == "weighted":
        weights = tuple(draw(st.lists(st.integers(0, MAX_WEIGHT), min_size=members, max_size=members).filter(any)))
    letters = string.ascii_letters + string.digits
    name = draw(st.text(letters, min_size=1, max_size=1)) + draw(st.text(letters + "_.-", max_size=127))
    day_ms = 86_400_000
    return Destination(
        name,
        kind,
        members,
        routing,
        weights,
        draw(st.integers(1, 2**30)),
        draw(st.integers(0, 36_500 * day_ms)),
        draw(st.integers(0, 30 * day_ms)),
        draw(st.integers(0, 365 * day_ms)),
    )


@given(st.lists(destinations(), min_size=1, max_size=4, unique_by=lambda d: d.name))
def test_destination_survives_a_round_trip_through_yaml(
    tmp_path_factory: pytest.TempPathFactory, made: list[Destination]
) -> None:
    text = yaml.safe_dump({"destinations": {d.name: declare(d) for d in made}}, sort_keys=False)
    file = tmp_path_factory.getbasetemp() / "round-trip.yaml"
    file.write_text(text, encoding="utf-8")
    assert load_module(file).destinations == made


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_arbitrary_bytes_raise_only_module_file_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "noise.yaml"
    file.write_bytes(data)
    with pytest.raises(ModuleFileError):
        load_module(file)
