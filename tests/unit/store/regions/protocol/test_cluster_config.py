"""rs_daemons.cfg: every rule, and the daemons of a machine (R1, R2, R11, R18)."""

from __future__ import annotations

import ast
import hashlib
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_jms.store.errors import DaemonConfigError, NoLocalDaemonError
from spark_jms.store.regions.protocol.cluster_config import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    MAX_LOCALINDEX,
    ClusterConfig,
    DaemonSpec,
    local_daemons,
    parse,
    pick_local,
)
from tests.harness.project import PROJECT

FILE = "gd/rs_daemons.cfg"
PURE = (
    "protocol/cluster_config",
    "core/memory_use",
    "daemon/options",
    "admin/port",
    "admin/formats",
    "admin/commands",
)
IMPURE = {"socket", "os", "io", "pathlib", "time", "random", "secrets", "asyncio", "threading", "subprocess", "logging"}
GIB = 1 << 30
REFERENCE_EXAMPLE = """\
 #ipaddress   portno shmkey memlmt
  123.456.78.9 4545   4545   2G
  123.456.78.6 4546   4545   2G
"""
ONE_NODE = "db 4545 1 1G\nother 4545 1 1G\ndb 4546 2 1G\ndb 4547 3 1G\n"


def refused(text: str) -> DaemonConfigError:
    with pytest.raises(DaemonConfigError) as caught:
        parse(text, FILE)
    assert caught.value.file == FILE
    assert pickle.loads(pickle.dumps(caught.value)).detail() == caught.value.detail()
    return caught.value


def test_example_of_the_reference() -> None:
    """R1: as printed, with a comment and leading blanks; a key may be used again on another address."""
    config = parse(REFERENCE_EXAMPLE, FILE)
    assert config.daemons == (
        DaemonSpec(0, "123.456.78.9", 4545, 4545, 2 * GIB),
        DaemonSpec(1, "123.456.78.6", 4546, 4545, 2 * GIB),
    )


def test_shipped_examples_are_valid() -> None:
    """R1: the files in conf/."""
    paths = sorted((PROJECT / "conf").glob("rs_daemons*.cfg"))
    assert len(paths) == 2
    for path in paths:
        config = parse(path.read_text(encoding="utf-8"), str(path))
        assert len(config.daemons) >= 3


@pytest.mark.parametrize(
    ("limit", "expected"), [("1M", 1 << 20), ("512MB", 512 << 20), ("8G", 8 << 30), ("3GB", 3 << 30), ("007M", 7 << 20)]
)
def test_memory_limits(limit: str, expected: int) -> None:
    """R1: an integer and M, MB, G or GB."""
    assert parse(f"h 1024 1 {limit}", FILE).daemons[0].memory_limit_bytes == expected


def test_memory_limit_is_optional() -> None:
    """R1: a line with three fields gets the default."""
    assert parse("h 1024 1", FILE).daemons[0].memory_limit_bytes == DEFAULT_MEMORY_LIMIT_BYTES


@pytest.mark.parametrize(("key", "expected"), [("8000", 8000), ("0x1f40", 8000), ("0X1F40", 8000), ("010", 10)])
def test_keys_are_decimal_or_hexadecimal(key: str, expected: int) -> None:
    """R1: a leading zero does not make a key octal."""
    assert parse(f"h 1024 {key} 1G", FILE).daemons[0].shmkey == expected


@pytest.mark.parametrize("address", ["127.0.0.1", "node-7.example.org", "node_7", "::1", "fe80::2", "localhost", "n."])
def test_addresses_are_names_or_numbers(address: str) -> None:
    """R1: kept as written."""
    assert parse(f"{address} 49151 1 1G", FILE).daemons[0].address == address


def test_daemon_numbers_count_daemons() -> None:
    """R1: not comments and blank lines; tabs, carriage returns and a missing last line end are allowed."""
    config = parse("# a\n\n   \t\na 1024 1 1G # tail\r\n#b\n\nb\t1024\t0x1\t1G", FILE)
    assert [(daemon.index, daemon.address, daemon.shmkey) for daemon in config.daemons] == [(0, "a", 1), (1, "b", 1)]


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("h 4545", "2 fields"),
        ("h 4545 1 2 G", "5 fields"),
        ("h 1023 1 1G", "port '1023'"),
        ("h 49152 1 1G", "port '49152'"),
        ("h 4_545 1 1G", "port '4_545'"),
        ("h ٤٥٤٥ 1 1G", "port"),
        ("h -1 1 1G", "port '-1'"),
        ("h 9" + "9" * 5000 + " 1 1G", "port"),
        ("h 4545 0 1G", "key '0'"),
        ("h 4545 x1 1G", "key 'x1'"),
        ("h 4545 0x 1G", "key '0x'"),
        ("h 4545 0x100000000 1G", "key '0x100000000'"),
        ("h 4545 -3 1G", "key '-3'"),
        ("h 4545 1 1", "limit '1'"),
        ("h 4545 1 0G", "limit '0G'"),
        ("h 4545 1 1.5G", "limit '1.5G'"),
        ("h 4545 1 1K", "limit '1K'"),
        ("h 4545 1 2g", "limit '2g'"),
        ("h 4545 1 -2G", "limit '-2G'"),
        ("h 4545 1 999999999999GB", "limit"),
        ("h/x 4545 1 1G", "address 'h/x'"),
        ("-h 4545 1 1G", "address '-h'"),
        ("a..b 4545 1 1G", "address 'a..b'"),
        ("1:2 4545 1 1G", "address '1:2'"),
        ("hé 4545 1 1G", "address 'hé'"),
        ("a" * 300 + " 4545 1 1G", "address"),
    ],
)
def test_violation_names_file_line_and_word(line: str, word: str) -> None:
    """R1: the first one in the file."""
    error = refused(f"# head\n\nok 4545 1 1G\n{line}\nbad also\n")
    assert error.line == 4
    assert word in error.reason
    assert f"{FILE}:4: " in str(error)


@pytest.mark.parametrize(
    ("first", "second"),
    [("H 4545 1 1G", "h 4545 2 1G"), ("h. 4545 1 1G", "h 4545 2 1G"), ("::1 4545 1 1G", "0:0:0:0:0:0:0:1 4545 2 1G")],
)
def test_address_and_port_are_unique(first: str, second: str) -> None:
    """R1: however the address is spelled; the error names the line that has it first."""
    error = refused(f"#\n{first}\n{second}")
    assert error.line == 3
    assert "already taken by line 2" in error.reason


def test_keys_differ_on_one_machine() -> None:
    """R1: two spellings of a key are the same key."""
    error = refused("h 4545 0x10 1G\nh 4546 16 1G")
    assert error.line == 2
    assert "key 0x10 is already taken on 'h' by line 1" in error.reason


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_file_without_daemons_is_refused(text: str) -> None:
    """R1: the error names no line."""
    error = refused(text)
    assert error.line == 0
    assert error.detail() == f"{FILE}: names no daemon"


def test_number_of_daemons_is_limited() -> None:
    """R1, R5: to 1000, three digits in a log file's name."""
    lines = [f"h{number} 4545 1 1G" for number in range(1001)]
    assert parse("\n".join(lines[:1000]), FILE).daemons[-1].index == 999
    assert refused("\n".join(lines)).line == 1001


def test_checksum_covers_every_byte() -> None:
    """R2: comments and line ends change it."""
    text = "# Größe\nh 4545 1 1G\n"
    assert parse(text, FILE).checksum == hashlib.sha256(text.encode()).hexdigest()
    assert len({parse(each, FILE).checksum for each in (text, text + "#", text.replace("\n", "\r\n"))}) == 3
    raw = b"# Gr\xf6\xdfe\nh 4545 1 1G\n"
    assert parse(raw.decode("utf-8", "surrogateescape"), FILE).checksum == hashlib.sha256(raw).hexdigest()


def test_daemons_must_be_numbered_in_order() -> None:
    """R1: a ClusterConfig checks that itself."""
    with pytest.raises(ValueError, match="numbered from 0"):
        ClusterConfig((DaemonSpec(1, "h", 4545, 1, GIB),), "")


@pytest.mark.parametrize(("localindex", "number"), [(0, 0), (1, 2), (2, 3), (3, 0), (MAX_LOCALINDEX, 2)])
def test_local_index_wraps(localindex: int, number: int) -> None:
    """R11: among the daemons of this machine, in the order of the file."""
    config = parse(ONE_NODE, FILE)
    assert [daemon.index for daemon in local_daemons(config, {"DB", "10.0.0.1"})] == [0, 2, 3]
    assert pick_local(config, {"DB", "10.0.0.1"}, localindex).index == number


def test_machine_without_a_daemon_is_refused() -> None:
    """R18: the error names the addresses of the file."""
    with pytest.raises(NoLocalDaemonError, match="none of db, other is an address of this machine"):
        pick_local(parse(ONE_NODE, FILE), {"elsewhere"}, 0)


@pytest.mark.parametrize("localindex", [-1, MAX_LOCALINDEX + 1])
def test_local_index_is_limited(localindex: int) -> None:
    """R11: 0 to MAX_LOCALINDEX."""
    with pytest.raises(ValueError, match="localindex"):
        pick_local(parse(ONE_NODE, FILE), {"db"}, localindex)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=120))
@example("h 1024 1 ²G")
@example("\x0b\x0c\x1c\u2028")
def test_any_text_is_a_cluster_or_a_config_error(text: str) -> None:
    """R1: no other exception, and no other line number."""
    lines = 1
    try:
        lines = len(parse(text, FILE).daemons)
    except DaemonConfigError as error:
        lines = error.line + 1
    assert 1 <= lines <= text.count("\n") + 2


def imported(tree: ast.Module) -> set[str]:
    """The top-level packages that a module imports anywhere."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", sorted((PROJECT / "store/regions/core").glob("*.py")), ids=lambda path: path.stem)
def test_core_module_imports_nothing_impure(path: Path) -> None:
    """House rule 1: time and memory come in as arguments and ports."""
    assert imported(ast.parse(path.read_text(encoding="utf-8"))) & IMPURE == set()


@pytest.mark.parametrize("module", PURE)
def test_pure_module_imports_and_calls_nothing_impure(module: str) -> None:
    """House rule 1: no file, socket, clock or chance."""
    tree = ast.parse((PROJECT / "store" / "regions" / f"{module}.py").read_text(encoding="utf-8"))
    assert imported(tree) & IMPURE == set()
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {each.id for each in called if isinstance(each, ast.Name)}
    names |= {each.attr for each in called if isinstance(each, ast.Attribute)}
    assert names & {"open", "now", "utcnow", "today", "input"} == set()


NUMBERS = {
    "node-a": ["10.0.0.1"],
    "alias.example": ["10.0.0.1", "fe80::1"],
    "node-b": ["10.0.0.2"],
    "me": ["127.0.1.1"],
}


def resolved(text: str) -> ClusterConfig:
    return parse(text, FILE, lambda name: NUMBERS.get(name, []))


def test_names_of_one_machine_are_one_address() -> None:
    """R1: two names of one number, and a name and its number, must not share a port or a key; unknown names are only equal to
    themselves."""
    for other in ("alias.example", "10.0.0.1"):
        with pytest.raises(DaemonConfigError, match=r"\(10.0.0.1\) and port 4545 are already|'10.0.0.1' and port 4545"):
            resolved(f"node-a 4545 1 1G\n{other} 4545 2 1G")
        with pytest.raises(DaemonConfigError, match="key 0x1 is already taken"):
            resolved(f"node-a 4545 1 1G\n{other} 4546 1 1G")
    assert len(resolved("node-a 4545 1 1G\nnode-b 4545 1 1G\nunknown 4545 1 1G\nelsewhere 4545 1 1G").daemons) == 4


def test_daemon_with_a_name_is_found_by_the_numbers_of_its_machine() -> None:
    """R1, R18: also where the name stands for a loopback number, as Debian's hosts file has it. The checksum is the file's, whatever
    a name stands for."""
    text = "node-a 4545 1 1G\nnode-b 4545 1 1G\nme 4545 1 1G\nunknown 4545 1 1G"
    config = resolved(text)
    assert [daemon.index for daemon in local_daemons(config, {"10.0.0.2", "127.0.0.1"})] == [1, 2]
    assert [daemon.index for daemon in local_daemons(config, {"node-a"})] == [0, 2]
    assert pick_local(config, {"10.0.0.1"}, 0).address == "node-a"
    assert config == parse(text, FILE)
