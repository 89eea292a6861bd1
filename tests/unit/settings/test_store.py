"""The settings of stores: variables of a daemon and its door, options of store URIs (R3, R17, S1, S6)."""

from __future__ import annotations

import attrs
import pytest

from spark_jms.settings.store import (
    DaemonSettings,
    DoorSettings,
    JdbcOptions,
    ReplicatedOptions,
    Thresholds,
    from_query,
    from_variables,
)
from spark_jms.settings.table import Setting, Table, settings_of
from spark_jms.settings.types import Text
from spark_jms.store.errors import SettingInvalidError, StoreUriError
from spark_jms.store.jdbc.settings import parse_jdbc
from spark_jms.store.regions.client.attachment import PING_S
from spark_jms.store.regions.daemon.options import from_environment
from spark_jms.store.replicated.store import parse_replicated

URI_ROWS = [
    (base, row)
    for base, table in (
        ("replicated:///gd", ReplicatedOptions),
        ("jdbc:sqlite:///x.db", JdbcOptions),
        ("jdbc:postgresql://h/d", JdbcOptions),
    )
    for row in settings_of(table).values()
    if not isinstance(row.type, Text)
]
VARIABLES = [
    (table, row)
    for table in (DaemonSettings, DoorSettings)
    for row in settings_of(table).values()
    if type(row.type) is not Text
]


def test_daemon_defaults() -> None:
    """R3"""
    assert from_environment({"PATH": "/bin", "RS_UNKNOWN": "1"}) == DaemonSettings()


def test_daemon_reads_its_variables() -> None:
    """R3: bare numbers are milliseconds; durations may carry a unit."""
    given = {
        "RS_HEARTBEAT_MS": "50",
        "RS_FAILURE_TIMEOUT_MS": "1 s",
        "RS_CLIENT_TIMEOUT_MS": "5000",
        "RS_OPEN_TIMEOUT_MS": "1m",
        "RS_RESILVER_MB_PER_S": "2",
        "RS_SINGLE_COPY": "refuse",
    }
    assert from_environment(given) == DaemonSettings(
        heartbeat_ms=50,
        failure_timeout_ms=1000,
        client_timeout_ms=5000,
        open_timeout_ms=60_000,
        resilver_bytes_per_s=2 << 20,
        single_copy="refuse",
    )


@pytest.mark.parametrize(("table", "row"), VARIABLES, ids=[row.name for _, row in VARIABLES])
@pytest.mark.parametrize("text", ["", "0", "x", "-1", "999999999999"])
def test_bad_variable_is_named(table: type[Table], row: Setting, text: str) -> None:
    """R3: with its value and what is allowed."""
    with pytest.raises(SettingInvalidError) as caught:
        from_variables(table, {row.name: text})  # type: ignore[type-var]
    assert (caught.value.name, caught.value.value) == (row.name, text)
    assert row.type.allowed in str(caught.value)


def test_client_timeout_leaves_room_for_several_signs_of_life() -> None:
    """R3, R10: an idle store sends one every PING_S; a shorter time-out would end it, so the daemon refuses it."""
    with pytest.raises(SettingInvalidError, match="RS_CLIENT_TIMEOUT_MS=1000: it must be .*3 s to 10 min"):
        from_environment({"RS_CLIENT_TIMEOUT_MS": "1000"})
    assert from_environment({"RS_CLIENT_TIMEOUT_MS": "3000"}).client_timeout_ms >= 3 * PING_S * 1000


def test_failure_timeout_is_at_least_twice_the_heartbeat() -> None:
    """R3"""
    with pytest.raises(
        SettingInvalidError, match="RS_FAILURE_TIMEOUT_MS=2000: it must be at least twice RS_HEARTBEAT_MS"
    ):
        from_environment({"RS_HEARTBEAT_MS": "1001"})


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("9870", "127.0.0.1", 9870), ("rs1:14000", "rs1", 14000), ("::1:80", "::1", 80), (None, "127.0.0.1", 0)],
)
def test_door_address_is_port_or_host_and_port(address: str | None, host: str, port: int) -> None:
    """R19"""
    settings: DoorSettings = from_variables(DoorSettings, {} if address is None else {"RS_DOOR": address})
    assert (settings.host, settings.port, settings.region_bytes) == (host, port, 64 << 20)


def test_door_reads_its_variables() -> None:
    """R19"""
    given = {f"RS_DOOR_{name}": name.lower() for name in ("CERTIFICATE", "KEY", "TOKENS")}
    settings: DoorSettings = from_variables(DoorSettings, {**given, "RS_DOOR": "1", "RS_DOOR_REGION_MB": "8"})
    assert settings == DoorSettings("1", "certificate", "key", "tokens", 8 << 20)
    assert from_variables(DoorSettings, {"RS_DOOR_OPEN": "true"}).open


@pytest.mark.parametrize("field", [f.name for f in attrs.fields(Thresholds)])
def test_threshold_is_checked_on_construction(field: str) -> None:
    """R13"""
    for value in (0, 101, 1.5, "50", True, None):
        with pytest.raises(SettingInvalidError, match="1 to 100"):
            Thresholds(**{field: value})


@pytest.mark.parametrize(("base", "row"), URI_ROWS, ids=[f"{base[:7]} {row.name}" for base, row in URI_ROWS])
@pytest.mark.parametrize("text", ["", "-1", "x", "99999999999", "nan", "inf"])
def test_bad_uri_option_is_named(base: str, row: Setting, text: str) -> None:
    """S1: with its value and what is allowed."""
    with pytest.raises(StoreUriError) as caught:
        (parse_replicated if base.startswith("repl") else parse_jdbc)(f"{base}?{row.name}={text}")
    assert f"{row.name} is {text!r}, but must be {row.type.allowed}" in str(caught.value)
    if base.startswith("repl"):
        assert f"in '{base}?" in str(caught.value)


def test_replicated_uri_is_parsed() -> None:
    """R17: the key may be in the file of the certificate; unknown options are named."""
    settings = parse_replicated(
        "replicated:///g%20d?store=s&localindex=1&region_mb=8&engine_port=7&engine_certificate=c"
    )
    assert (settings.directory, settings.store, settings.localindex, settings.region_bytes) == ("/g d", "s", 1, 8 << 20)
    assert (settings.engine_host, settings.engine_port) == ("127.0.0.1", 7)
    assert (settings.engine_certificate, settings.engine_key) == ("c", "c")
    with pytest.raises(StoreUriError, match="unknown in .*: regionmb, stor; there are store, localindex, region_mb"):
        parse_replicated("replicated:///gd?stor=x&regionmb=1")


def test_libpq_options_pass_through() -> None:
    """S6"""
    known, others = from_query(
        JdbcOptions, "sslmode=require&retry_limit_s=5+min&create_tables=no&on_connection_loss=Retry&x="
    )
    assert known == {"retry_limit_s": 300.0, "create_tables": False, "on_connection_loss": "retry"}
    assert others == (("sslmode", "require"), ("x", ""))
