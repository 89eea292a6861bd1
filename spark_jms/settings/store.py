"""The settings of stores: variables of a daemon and its door, thresholds, options of store URIs.

The store imports this module. It must not import other tables.

Features: R3, R13, S1 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import attrs

from spark_jms.settings.table import Setting, Table, read_texts, setting, settings_of
from spark_jms.settings.types import Choice, Duration, Flag, HostPort, Text, Whole
from spark_jms.store.errors import SettingInvalidError, StoreUriError

FAILOVER, RETRY = "failover", "retry"
LOOPBACK = "127.0.0.1"
PEM = Text("a PEM file")
PERCENT = Whole(1, 100, "%")
PORT = Whole(0, 65_535)
REGION_SIZE = Whole(1, 4_000, "MB", 2**20)
LOSS = {
    FAILOVER: "this process gives up its records and looks for the engine that took over",
    RETRY: "it tries for retry_limit_s to regain its lock",
}
SINGLE_COPY = {
    "allow": "writes are accepted, and the log warns",
    "refuse": "each write is a SingleCopyError",
}


class _FromVariables(Table):
    """Read from variables: a wrong value is a SettingInvalidError."""

    __slots__ = ()

    def refusal(self, row: Setting, value: object, allowed: str) -> SettingInvalidError:
        return invalid(row, str(value), allowed)


class _FromUri(Table):
    """Read from the query of a URI: a wrong value is a StoreUriError."""

    __slots__ = ()

    def refusal(self, row: Setting, value: object, allowed: str) -> StoreUriError:
        return StoreUriError(f"{row.name} is {value!r}, but must be {allowed}")


# -- a daemon of the replicated store ----------------------------------------------------------------------------------
@attrs.frozen
class DaemonSettings(_FromVariables):
    """How a daemon keeps time and copies regions. The fields without a variable are for tests."""

    heartbeat_ms: float = setting(
        "RS_HEARTBEAT_MS",
        Duration("10 ms", "1 min", bare="ms"),
        200.0,
        "How often daemons send each other a heartbeat. The same for all daemons of a cluster: others are refused.",
    )
    failure_timeout_ms: float = setting(
        "RS_FAILURE_TIMEOUT_MS",
        Duration("100 ms", "10 min", bare="ms"),
        2_000.0,
        "Silence after which a daemon counts as dead; at least twice the heartbeat. The same for all daemons of a cluster.",
    )
    client_timeout_ms: float = setting(
        "RS_CLIENT_TIMEOUT_MS",
        Duration("3 s", "10 min", bare="ms"),
        10_000.0,
        "Silence after which a daemon drops a store's connection. Stores give a sign of life once a second.",
    )
    open_timeout_ms: float = setting(
        "RS_OPEN_TIMEOUT_MS", Duration("100 ms", "1 h", bare="ms"), 30_000.0, "How long an open waits for its region."
    )
    lock_memory: bool = setting(
        "RS_LOCK_MEMORY",
        Flag(),
        True,
        "Whether regions are locked in memory, so that the system never pages them out to a disk. Needs a memlock limit "
        "(`ulimit -l`) of at least the daemon's memory limit.",
    )
    audit_ms: float = 1_000.0
    resilver_bytes_per_s: int = setting(
        "RS_RESILVER_MB_PER_S",
        Whole(1, 100_000, "MB/s", 2**20),
        256 * 2**20,
        "How fast a daemon makes new copies while it serves.",
    )
    resilvers_at_once: int = 4
    chunk_bytes: int = 256 * 1024
    window_bytes: int = 4 * 1024 * 1024
    single_copy: str = setting("RS_SINGLE_COPY", Choice(SINGLE_COPY), "allow", "Writes to a region with one copy left.")


@attrs.frozen
class DoorSettings(_FromVariables):
    """The WebHDFS door of a daemon. An address other than loopback needs TLS and tokens. Without tokens the door admits the
    daemon's own user."""

    address: str | None = setting("RS_DOOR", HostPort(), None, "Where the WebHDFS door listens.", without="no door")
    certificate: str = setting("RS_DOOR_CERTIFICATE", PEM, "", "The door's certificate; needed beyond loopback.")
    key: str = setting("RS_DOOR_KEY", PEM, "", "The door's key; needed beyond loopback.")
    tokens: str = setting("RS_DOOR_TOKENS", Text("a file"), "", "Users and their tokens; needed beyond loopback.")
    region_bytes: int = setting(
        "RS_DOOR_REGION_MB", REGION_SIZE, 64 * 2**20, "Size of the regions that hold the door's namespace."
    )
    open: bool = setting(
        "RS_DOOR_OPEN", Flag(), False, "Whether every user of this machine may use the door, without a token."
    )
    store: str = "webhdfs"

    @property
    def host(self) -> str:
        return (self.address or "").rpartition(":")[0] or LOOPBACK

    @property
    def port(self) -> int:
        """0: no door."""
        return int((self.address or "0").rpartition(":")[2])


@attrs.frozen
class Thresholds(_FromVariables):
    """Percentages: the first of the region size, the others of the daemon's shared memory limit. They are read from the
    environment of the process that opens the store, for doors of the daemon."""

    maximum_message_size_percent: int = setting(
        "MaximumMessageSizePercent",
        PERCENT,
        1,
        "An object larger than this part of a region (or than 32 MiB) is an ObjectTooLargeError; the namespace of a door "
        "has 4.",
    )
    space_logging_start_percent: int = setting(
        "SpaceLoggingStartPercent", PERCENT, 70, "From here on a store logs its daemon's use of memory …"
    )
    space_logging_delta_percent: int = setting("SpaceLoggingDeltaPercent", PERCENT, 10, "… at each such change.")
    space_overload_yellow_percent: int = setting(
        "SpaceOverloadYellowPercent",
        PERCENT,
        80,
        "Logged as a warning. While the daemon's memory *and* the store's regions are above it, the domain's sends are refused "
        "(ResourceAllocationException), doors accept no new files and contents (DSQuotaExceededException), and "
        "`await StoreInstance.check_new_message(size)` refuses for programs that ask; consumers continue, and deletions pass. A "
        "store whose regions are above it asks its daemon at each such write, and once a second for the sends.",
    )
    space_overload_red_percent: int = setting(
        "SpaceOverloadRedPercent",
        PERCENT,
        90,
        "Logged as an error. New stores, and stores with a region that has no copy there, do not open at that daemon "
        "(MemoryLimitError); a store whose regions are all there does.",
    )


# -- URIs --------------------------------------------------------------------------------------------------------------
@attrs.frozen
class ReplicatedOptions(_FromUri):
    """Of replicated:///global/directory?store=NAME."""

    store: str = setting(
        "store", Text("1 to 100 letters, digits, '-', '_'"), "jmsq", "The store's name; one for each domain."
    )
    localindex: int = setting(
        "localindex",
        Whole(0, 2**31 - 1),
        0,
        "The daemon of this machine to attach to, modulo their number; if it does not run, another one of this machine.",
    )
    region_bytes: int = setting("region_mb", REGION_SIZE, 64 * 2**20, "Size of regions that are created from now on.")
    engine_host: str = setting(
        "engine_host",
        Text("one address by which the other machines reach this one, or daemon", r"(?!(0\.0\.0\.0|::)?\Z).*"),
        LOOPBACK,
        "The address at which an engine on this machine serves processes of the others; `daemon`: that of its daemon in "
        "rs_daemons.cfg, so that one URI is right everywhere. Any but loopback needs a certificate.",
    )
    engine_port: int = setting("engine_port", PORT, 0, "The engine's port; 0: any free one.")
    engine_certificate: str = setting(
        "engine_certificate", PEM, "", "The engine's certificate, on each machine. It encrypts loopback too."
    )
    engine_key: str = setting("engine_key", PEM, "", "Its key, mode 0600.", without="that in engine_certificate")


@attrs.frozen
class JdbcOptions(_FromUri):
    """Of jdbc:sqlite:///path/file.db and jdbc:postgresql://user@host:port/db."""

    schema: str = setting("schema", Text("letters, digits and _", r"[A-Za-z]\w{0,40}"), "", "PostgreSQL: the schema.")
    prefix: str = setting(
        "prefix", Text("letters, digits and _", r"[A-Za-z]\w{0,40}"), "SIB", "The tables are PREFIXOWNER and so on."
    )
    engine: str = setting("engine", Text("1 to 64 characters", longest=64), "", "The ME_UUID the store must belong to.")
    create_tables: bool = setting("create_tables", Flag(), True, "Whether the first engine creates missing tables.")
    permanent_tables: int = setting("permanent_tables", Whole(1, 32), 1, "How many tables hold permanent data.")
    temporary_tables: int = setting("temporary_tables", Whole(1, 32), 1, "How many tables hold temporary data.")
    on_connection_loss: str = setting(
        "on_connection_loss", Choice(LOSS, fold=True), FAILOVER, "What an engine does when it loses its database."
    )
    retry_limit_s: float = setting(
        "retry_limit_s", Duration("0.1 s", "1 day", "s", "s"), 900.0, "How long an engine tries to reach its database."
    )
    retry_interval_ms: float = setting(
        "retry_interval_ms", Duration("10 ms", "1 min", bare="ms"), 1_000.0, "The pause between two such attempts."
    )
    verify_interval_ms: float = setting(
        "verify_interval_ms",
        Duration("10 ms", "1 min", bare="ms"),
        1_000.0,
        "How often an idle engine verifies its lock.",
    )
    statement_limit_s: float = setting(
        "statement_limit_s",
        Duration("0.1 s", "1 h", "s", "s"),
        20.0,
        "An engine cuts a connection whose answer does not arrive within this time.",
    )
    orphan_limit_s: float = setting(
        "orphan_limit_s",
        Duration("1 s", "2 h", "s", "s"),
        120.0,
        "The database drops the lock of an engine that it has not heard for this time; below `retry_limit_s`, or no "
        "engine would wait long enough for the lock.",
    )
    engine_host: str = setting(
        "engine_host",
        Text("one address by which the other hosts reach this one", r"(?!(0\.0\.0\.0|::)?\Z).*", longest=64),
        LOOPBACK,
        "The address at which this host's engine listens and serves the others. Any but loopback needs a certificate.",
    )
    engine_port: int = setting("engine_port", PORT, 0, "Its port; 0: any free one.")
    engine_certificate: str = setting(
        "engine_certificate", PEM, "", "The engine's certificate, on each host. It encrypts loopback too."
    )
    engine_key: str = setting("engine_key", PEM, "", "Its key, mode 0600.", without="that in engine_certificate")


# -- reading -----------------------------------------------------------------------------------------------------------
def invalid(row: Setting, text: str, allowed: str) -> SettingInvalidError:
    return SettingInvalidError(row.name, text, f"it must be {allowed}")


def from_variables(table: type[_FromVariables], environment: Mapping[str, str]) -> Any:
    """The table as the environment sets it. SettingInvalidError names the variable, its value and what is allowed."""
    return table(**read_texts(table, environment, invalid))


def from_query(
    table: type[_FromUri], query: str, where: str = ""
) -> tuple[dict[str, Any], tuple[tuple[str, str], ...]]:
    """The values of a URI's options by field, and the options that are not in the table. StoreUriError names an option,
    its value and what is allowed, and ends with `where`."""

    def refuse(row: Setting, text: str, allowed: str) -> StoreUriError:
        return StoreUriError(f"{row.name} is {text!r}, but must be {allowed}{where}")

    options = parse_qsl(query, keep_blank_values=True)
    known = settings_of(table)
    return read_texts(table, dict(options), refuse), tuple(pair for pair in options if pair[0] not in known)
