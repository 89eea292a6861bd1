"""The output of `lsd`, `lsr` and `lsc`: table and list, with the columns and labels of the reference. Pure: the time
and its zone are arguments (None: the machine's zone).

The layouts of `lsd` are the reference's to the byte, trailing blanks included, with one exception: there, the hours of a
list's up time (`00019:32:37` of 32 minutes) are those of a time of day in New York; here they are the hours that the
daemon is up. `lsr` has no example in the reference and follows the same manner. So does `lsc`, which the reference does not
have: it shows the counts of stores and connections under the reference's names.

Features: R6, R14 (docs/FEATURES.md)
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone, tzinfo

from spark_jms.store.contract import ConnectionInfo, StoreInfo
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

FORMATS = ("table", "list")

MIB = 1 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_NONE = "-"

_LSD_HEAD = (
    ("Idx ", "IP             ", " Port   Up          Rgns   Rgns   Rgns   Rgns   Mem     Mem "),
    ("    ", "Address        ", "        Time        Closed Open   Open   Total  Used    Used"),
    ("    ", "               ", "        HHHHH:MM:SS        Prima  Rplca         MB      %   "),
    ("--- ", "---------------", " ------ ----------- ------ ------ ------ ------ ------- -----"),
)
_ADDRESS_WIDTH = 15

_LSR_HEAD = (
    ("Region  ", " Status      Prima Rplca Epoch      Size    Used    Used   Created                    Opened"),
    ("Name    ", "             Idx   Idx              MB      MB      %                                 By"),
    ("--------", " ----------- ----- ----- ---------- ------- ------- ------ -------------------------- ------"),
)


def time_text(micros: int, zone: tzinfo | None) -> str:
    """2014-02-18 11:50:29 AM EST"""
    return (_EPOCH + timedelta(microseconds=micros)).astimezone(zone).strftime("%Y-%m-%d %I:%M:%S %p %Z")


def up_time_text(micros: int) -> str:
    """0:27:28, as in the table."""
    seconds = max(0, micros) // 1_000_000
    return f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"


def long_up_time_text(micros: int) -> str:
    """00000:27:28, as in the list."""
    return up_time_text(micros).zfill(len("HHHHH:MM:SS"))


def _up_us(daemon: DaemonInfo) -> int:
    return daemon.now_us - daemon.started_us


# ---- lsd


def daemons_table(daemons: Sequence[DaemonInfo], now_us: int, zone: tzinfo | None) -> str:
    """Unknown values of a daemon that is not up are hyphens. Addresses above 15 characters widen their column."""
    width = max([_ADDRESS_WIDTH, *(len(daemon.address) for daemon in daemons)])
    lines = [f"Current Time: {time_text(now_us, zone)}"]
    lines += [left + address.ljust(width, address[-1]) + right for left, address, right in _LSD_HEAD]
    lines += [_daemon_row(daemon, width) for daemon in daemons]
    return "\n".join(lines) + "\n"


def _daemon_row(daemon: DaemonInfo, width: int) -> str:
    start = f"{daemon.index:03d} {daemon.address:>{width}} {daemon.port:>6}"
    if not daemon.up:
        return f"{start} {'DOWN':>11} {_NONE:>6} {_NONE:>6} {_NONE:>6} {_NONE:>6} {_NONE:>7} {_NONE:>5}"
    return (
        f"{start} {up_time_text(_up_us(daemon)):>11} {daemon.regions_closed:>6} {daemon.regions_open_primary:>6}"
        f" {daemon.regions_open_replica:>6} {daemon.regions_total:>6} {daemon.memory_used_bytes // MIB:>7}"
        f" {_percent(daemon.memory_used_bytes, daemon.memory_limit_bytes):>5}"
    )


def _percent(used: int, total: int) -> str:
    return f"{used * 100 / total:.2f}" if total else _NONE


def daemons_list(daemons: Sequence[DaemonInfo], zone: tzinfo | None, cluster_size: int) -> str:
    """One record per daemon, separated by empty lines."""
    return "\n".join(_record(_daemon_fields(daemon, zone, cluster_size)) for daemon in daemons)


def _daemon_fields(daemon: DaemonInfo, zone: tzinfo | None, cluster_size: int) -> list[tuple[str, str]]:
    def live(text: object) -> str:
        return str(text) if daemon.up else _NONE

    status = ("DRAINING" if daemon.draining else "UP") if daemon.up else "DOWN"
    return [
        ("Index", f"{daemon.index:03d}"),
        ("Status", status),
        *([("Waits", daemon.waits_for)] if daemon.waits_for else []),
        ("Reachable over IB", str(daemon.reachable).upper()),
        ("IP Address", f"{daemon.address:<15}"),
        ("Port", str(daemon.port)),
        ("Shared Memory Key (hex)", f"{daemon.shmkey:#x}"),
        ("Shared Memory Key (decimal)", f"{daemon.shmkey:<6}"),
        ("Startup Time (YYYY-MM-DD HH:MM:ss)", live(time_text(daemon.started_us, zone))),
        ("Current Time (YYYY-MM-DD HH:MM:ss)", live(time_text(daemon.now_us, zone))),
        ("Up Time (HHHH:MM:ss)", live(long_up_time_text(_up_us(daemon)))),
        ("Startup Time (micros since epoch)", live(daemon.started_us)),
        ("Current Time (micros since epoch)", live(daemon.now_us)),
        ("Up Time (micros)", live(_up_us(daemon))),
        ("Total Configured Memory (MB)", str(daemon.memory_limit_bytes // MIB)),
        ("Current Memory Usage (MB)", live(daemon.memory_used_bytes // MIB)),
        ("Number of Regions Closed", live(daemon.regions_closed)),
        ("Number of Regions Opened as Primary", live(daemon.regions_open_primary)),
        ("Number of Regions Opened as Replica", live(daemon.regions_open_replica)),
        ("Total Number of Regions Managed", live(daemon.regions_total)),
        ("Number of Resilvers in Progress", live(daemon.resilvers_in_progress)),
        ("Number of Daemons in Cluster", str(cluster_size)),
    ]


def _record(fields: Sequence[tuple[str, str]]) -> str:
    width = len("Number of Regions Opened as Primary")
    return "".join(f"{label:>{width}} : {value}\n" for label, value in fields)


# ---- lsr


def regions_table(regions: Sequence[RegionInfo], now_us: int, zone: tzinfo | None) -> str:
    """Long names widen their column. The last column, the opener of the region, has no fixed width."""
    width = max([len(_LSR_HEAD[0][0]), *(len(region.name) for region in regions)])
    lines = [f"Current Time: {time_text(now_us, zone)}"]
    lines += [name.ljust(width, name[-1]) + right for name, right in _LSR_HEAD]
    lines += [_region_row(region, width, zone) for region in regions]
    return "\n".join(lines) + "\n"


def _region_row(region: RegionInfo, width: int, zone: tzinfo | None) -> str:
    row = (
        f"{region.name:<{width}} {region.status:<11} {_index(region.primary):<5} {_index(region.secondary):<5}"
        f" {region.epoch:>10} {region.size_bytes // MIB:>7} {region.used_bytes // MIB:>7}"
        f" {_percent(region.used_bytes, region.size_bytes):>6} {time_text(region.created_us, zone):<26} {region.opener}"
    )
    return row.rstrip()


def _index(index: int | None) -> str:
    return _NONE if index is None else f"{index:03d}"


def regions_list(regions: Sequence[RegionInfo], zone: tzinfo | None) -> str:
    """One record per region, separated by empty lines."""
    return "\n".join(_record(_region_fields(region, zone)) for region in regions)


def _region_fields(region: RegionInfo, zone: tzinfo | None) -> list[tuple[str, str]]:
    return [
        ("Region Name", region.name),
        ("Status", region.status),
        *([("Reason", region.reason)] if region.reason else []),
        ("Opened By", region.opener or _NONE),
        ("Primary Daemon Index", _index(region.primary)),
        ("Replica Daemon Index", _index(region.secondary)),
        ("Epoch", str(region.epoch)),
        ("Created (YYYY-MM-DD HH:MM:ss)", time_text(region.created_us, zone)),
        ("Created (micros since epoch)", str(region.created_us)),
        ("Region Size (MB)", str(region.size_bytes // MIB)),
        ("Region Size (bytes)", str(region.size_bytes)),
        ("Current Region Usage (bytes)", str(region.used_bytes)),
        ("Current Region Usage (%)", _percent(region.used_bytes, region.size_bytes)),
    ]


# ---- lsc

_COUNTS = ("CreateCount", "ReadCount", "UpdateCount", "DeleteCount", "ObjectCount")


def stores_table(stores: Sequence[StoreInfo]) -> str:
    """One line for each store, with the number of its connections, and one for each connection below it."""
    names = [name for store in stores for name in (store.name, *(f"  {each.name}" for each in store.connections))]
    width = max([len("Store"), *map(len, names)])
    lines = [" ".join(("Store".ljust(width), *_COUNTS, "Connections", "PhysicalWriteCount"))]
    lines.append(" ".join("-" * len(head) for head in ("-" * width, *_COUNTS, "Connections", "PhysicalWriteCount")))
    for store in stores:
        lines.append(
            f"{_counts(store.name, store, width)} {len(store.connections):>11} {store.physical_write_count:>18}"
        )
        lines += [_counts(f"  {connection.name}", connection, width) for connection in store.connections]
    return "\n".join(lines) + "\n"


def _counts(name: str, of: StoreInfo | ConnectionInfo, width: int) -> str:
    values = (of.create_count, of.read_count, of.update_count, of.delete_count, of.object_count)
    counts = (f"{value:>{len(head)}}" for head, value in zip(_COUNTS, values, strict=True))
    return " ".join((name.ljust(width), *counts))


def stores_list(stores: Sequence[StoreInfo]) -> str:
    """One record per store and per connection, separated by empty lines."""
    records = []
    for store in stores:
        more = [("Connections", str(len(store.connections))), ("PhysicalWriteCount", str(store.physical_write_count))]
        records.append(_record([("Store Name", store.name), *_count_fields(store), *more]))
        records += [
            _record([("Store Name", store.name), ("Connection Name", connection.name), *_count_fields(connection)])
            for connection in store.connections
        ]
    return "\n".join(records)


def _count_fields(of: StoreInfo | ConnectionInfo) -> list[tuple[str, str]]:
    values = (of.create_count, of.read_count, of.update_count, of.delete_count, of.object_count)
    return [(head, str(value)) for head, value in zip(_COUNTS, values, strict=True)]
