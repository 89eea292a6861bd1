"""rs_daemons.cfg in every detail (R1, R2, R11)."""

from __future__ import annotations

import ast
import hashlib
import pickle
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_jms.store.errors import DaemonConfigError, NoLocalDaemonError
from spark_jms.store.regions.core.config import (
    DEFAULT_MEMORY_LIMIT_BYTES,
    MAX_LOCALINDEX,
    ClusterConfig,
    DaemonSpec,
    local_daemons,
    parse,
    pick_local,
)

PROJECT = Path(__file__).parents[2]
FILE = "gd/rs_daemons.cfg"
PURE = (
    "core/config",
    "core/utilization",
    "client/thresholds",
    "command_line",
    "daemon/options",
    "admin/selection",
    "admin/formats",
    "admin/commands",
)
IMPURE = {"socket", "os", "io", "pathlib", "time", "random", "secrets", "asyncio", "threading", "subprocess", "logging"}
GIB = 1 << 30
THE_TEXTS_EXAMPLE = """\
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


def test_the_texts_example() -> None:
    """R1: as printed, with a comment and leading blanks; the key may repeat on another address."""
    config = parse(THE_TEXTS_EXAMPLE, FILE)
    assert config.daemons == (
        DaemonSpec(0, "123.456.78.9", 4545, 4545, 2 * GIB),
        DaemonSpec(1, "123.456.78.6", 4546, 4545, 2 * GIB),
    )


def test_the_examples_of_conf() -> None:
    """R1: what we ship is right."""
    paths = sorted((PROJECT / "conf").glob("rs_daemons*.cfg"))
    assert len(paths) == 2
    for path in paths:
        config = parse(path.read_text(encoding="utf-8"), str(path))
        assert len(config.daemons) >= 3


@pytest.mark.parametrize(
    ("limit", "expected"), [("1M", 1 << 20), ("512MB", 512 << 20), ("8G", 8 << 30), ("3GB", 3 << 30), ("007M", 7 << 20)]
)
def test_memory_limits(limit: str, expected: int) -> None:
    """R1: integer and M, MB, G or GB."""
    assert parse(f"h 1024 1 {limit}", FILE).daemons[0].memory_limit_bytes == expected


def test_a_line_may_leave_the_limit_out() -> None:
    """R1: the limit is optional."""
    assert parse("h 1024 1", FILE).daemons[0].memory_limit_bytes == DEFAULT_MEMORY_LIMIT_BYTES


@pytest.mark.parametrize(("key", "expected"), [("8000", 8000), ("0x1f40", 8000), ("0X1F40", 8000), ("010", 10)])
def test_keys_are_decimal_or_hexadecimal(key: str, expected: int) -> None:
    """R1."""
    assert parse(f"h 1024 {key} 1G", FILE).daemons[0].shmkey == expected


@pytest.mark.parametrize("address", ["127.0.0.1", "node-7.example.org", "node_7", "::1", "fe80::2", "localhost", "n."])
def test_addresses(address: str) -> None:
    """R1: a name or a numeric IP, kept as it was written."""
    assert parse(f"{address} 49151 1 1G", FILE).daemons[0].address == address


def test_numbers_count_daemons_and_not_lines() -> None:
    """R1: comments and blank lines have no number; tabs, carriage returns and a missing last line end do no harm."""
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
def test_each_violation_names_file_line_and_word(line: str, word: str) -> None:
    """R1."""
    error = refused(f"# head\n\nok 4545 1 1G\n{line}\nbad also\n")
    assert error.line == 4
    assert word in error.reason
    assert f"{FILE}:4: " in str(error)


@pytest.mark.parametrize(
    ("first", "second"),
    [("H 4545 1 1G", "h 4545 2 1G"), ("h. 4545 1 1G", "h 4545 2 1G"), ("::1 4545 1 1G", "0:0:0:0:0:0:0:1 4545 2 1G")],
)
def test_address_and_port_are_unique(first: str, second: str) -> None:
    """R1: however the address is spelled; the line that had it first is named."""
    error = refused(f"#\n{first}\n{second}")
    assert error.line == 3
    assert "already taken by line 2" in error.reason


def test_keys_differ_on_one_node() -> None:
    """R1: same address, same key in another spelling."""
    error = refused("h 4545 0x10 1G\nh 4546 16 1G")
    assert error.line == 2
    assert "key 0x10 is already taken on 'h' by line 1" in error.reason


@pytest.mark.parametrize("text", ["", "\n# only a comment\n"])
def test_no_daemon_at_all(text: str) -> None:
    """R1: the file as a whole is at fault, so no line is named."""
    error = refused(text)
    assert error.line == 0
    assert error.detail() == f"{FILE}: names no daemon"


def test_a_thousand_daemons_and_no_more() -> None:
    """R1, R5: three digits in a log file's name."""
    lines = [f"h{number} 4545 1 1G" for number in range(1001)]
    assert parse("\n".join(lines[:1000]), FILE).daemons[-1].index == 999
    assert refused("\n".join(lines)).line == 1001


def test_the_checksum_is_that_of_the_bytes() -> None:
    """R2: a comment is a change too, and so is a line end."""
    text = "# Größe\nh 4545 1 1G\n"
    assert parse(text, FILE).checksum == hashlib.sha256(text.encode()).hexdigest()
    assert len({parse(each, FILE).checksum for each in (text, text + "#", text.replace("\n", "\r\n"))}) == 3
    raw = b"# Gr\xf6\xdfe\nh 4545 1 1G\n"
    assert parse(raw.decode("utf-8", "surrogateescape"), FILE).checksum == hashlib.sha256(raw).hexdigest()


def test_values_are_checked_when_made() -> None:
    """R1: numbers follow the order."""
    with pytest.raises(ValueError, match="numbered from 0"):
        ClusterConfig((DaemonSpec(1, "h", 4545, 1, GIB),), "")


@pytest.mark.parametrize(("localindex", "number"), [(0, 0), (1, 2), (2, 3), (3, 0), (MAX_LOCALINDEX, 2)])
def test_local_index_is_modulo(localindex: int, number: int) -> None:
    """R11: of the daemons of this node, in the order of the file."""
    config = parse(ONE_NODE, FILE)
    assert [daemon.index for daemon in local_daemons(config, {"DB", "10.0.0.1"})] == [0, 2, 3]
    assert pick_local(config, {"DB", "10.0.0.1"}, localindex).index == number


def test_no_local_daemon() -> None:
    """R18: a clear error, with the addresses that were looked for."""
    with pytest.raises(NoLocalDaemonError, match="none of db, other is an address of this machine"):
        pick_local(parse(ONE_NODE, FILE), {"elsewhere"}, 0)


@pytest.mark.parametrize("localindex", [-1, MAX_LOCALINDEX + 1])
def test_a_local_index_has_a_range(localindex: int) -> None:
    """R11: 0 to MAX_INT."""
    with pytest.raises(ValueError, match="localindex"):
        pick_local(parse(ONE_NODE, FILE), {"db"}, localindex)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=120))
@example("h 1024 1 ²G")
@example("\x0b\x0c\x1c\u2028")
def test_any_text_gives_a_cluster_or_the_named_error(text: str) -> None:
    """R1: nothing else ever comes out."""
    lines = 1
    try:
        lines = len(parse(text, FILE).daemons)
    except DaemonConfigError as error:
        lines = error.line + 1
    assert 1 <= lines <= text.count("\n") + 2


@pytest.mark.parametrize("module", PURE)
def test_what_decides_reads_no_file_clock_or_chance(module: str) -> None:
    """House rule 1: nor does it import what could."""
    tree = ast.parse((PROJECT / "store" / "regions" / f"{module}.py").read_text(encoding="utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in imported} & IMPURE == set()
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = {each.id for each in called if isinstance(each, ast.Name)}
    names |= {each.attr for each in called if isinstance(each, ast.Attribute)}
    assert names & {"open", "now", "utcnow", "today", "input"} == set()
