"""The output of lsd and lsr, byte for byte (R6). The expected outputs are files in golden/."""

from __future__ import annotations

from datetime import timedelta, timezone
from pathlib import Path

import pytest

from spark_jms.store.contract import ConnectionInfo, StoreInfo
from spark_jms.store.regions.admin.formats import (
    daemons_list,
    daemons_table,
    long_up_time_text,
    regions_list,
    regions_table,
    stores_list,
    stores_table,
    time_text,
    up_time_text,
)
from spark_jms.store.regions.admin.port import DaemonInfo, RegionInfo

GOLDEN = Path(__file__).parent / "golden"
EST = timezone(timedelta(hours=-5), "EST")
MIB = 1 << 20
NOW_US = 1_392_742_229_000_000  # 2014-02-18 11:50:29 AM EST
STARTED_US = 1_392_740_582_473_595

# The daemons of the reference's examples.
FIRST = DaemonInfo(
    0,
    "192.168.0.127",
    8000,
    8000,
    8192 * MIB,
    up=True,
    reachable=True,
    started_us=NOW_US - 1_648_000_000,
    now_us=NOW_US,
    memory_used_bytes=257 * MIB,
    regions_open_replica=2,
)
SECOND = DaemonInfo(
    1,
    "192.168.0.128",
    8000,
    8000,
    8192 * MIB,
    up=True,
    reachable=True,
    started_us=NOW_US - 1_647_000_000,
    now_us=NOW_US,
    memory_used_bytes=257 * MIB,
    regions_open_primary=2,
)
LISTED = DaemonInfo(
    1,
    "192.168.0.128",
    8000,
    8000,
    8192 * MIB,
    up=True,
    reachable=True,
    started_us=STARTED_US,
    now_us=STARTED_US + 1_957_601_304,
    memory_used_bytes=257 * MIB,
    regions_open_primary=2,
)
DOWN = DaemonInfo(2, "rs3.rack-b.example.org", 8001, 0xABC, 512 * MIB, up=False)
REGIONS = [
    RegionInfo("billing_000", 128 * MIB, "OPEN", 3, 1, 0, "query billing", STARTED_US, 96 * MIB),
    RegionInfo("audit", 8 * MIB, "LOST", 12, None, None, "", STARTED_US + 1_000_000, 0),
    RegionInfo("a_region_with_a_long_name", 64 * MIB, "SINGLE", 1, 0, None, "", NOW_US, 64 * MIB),
]
STORES = [
    StoreInfo(
        "billing",
        1_204,
        (
            ConnectionInfo("messaging.jmsServer.billing", 30_500, 12, 9_104, 30_400, 112),
            ConnectionInfo("messaging.jmsServer.durablesubs.billing", 4, 0, 71, 1, 3),
        ),
    ),
    StoreInfo("webhdfs", 98, (ConnectionInfo("webhdfs.namespace", 40, 1, 55, 2, 38),)),
]


def golden(name: str) -> str:
    with (GOLDEN / name).open(encoding="utf-8", newline="") as file:
        return file.read()


def test_lsd_table_matches_the_reference() -> None:
    """R6: header, rules, widths, up time, two decimal places of the percentage."""
    assert daemons_table([FIRST, SECOND], NOW_US, EST) == golden("lsd_table.txt")


def test_lsd_list_matches_the_reference() -> None:
    """R6: labels, hexadecimal key without padding, blanks after address and decimal key. The hours of the up time are ours."""
    assert daemons_list([LISTED], EST, 2) == golden("lsd_list.txt")


def test_daemon_that_is_down_has_no_figures() -> None:
    """R6: dashes instead of zeros; a name wider than a number widens its column."""
    lines = daemons_table([FIRST, DOWN], NOW_US, EST).splitlines()
    assert lines[4].startswith("--- ---------------------- ------ ")
    assert lines[5].startswith("000          192.168.0.127   8000     0:27:28 ")
    assert lines[6] == "002 rs3.rack-b.example.org   8001        DOWN      -      -      -      -       -     -"
    assert len({len(line) for line in lines[4:]}) == 1
    record = daemons_list([DOWN], EST, 3)
    assert record.count(" : -\n") == 12
    assert " : DOWN\n" in record
    assert " : 0xabc\n" in record


def test_records_are_separated_by_a_blank_line() -> None:
    """R6: between two daemons of a list."""
    text = daemons_list([LISTED, DOWN], EST, 2)
    assert text == daemons_list([LISTED], EST, 2) + "\n" + daemons_list([DOWN], EST, 2)


def test_draining_daemon_is_shown() -> None:
    """R4: as its status."""
    draining = DaemonInfo(0, "h", 8000, 1, MIB, up=True, draining=True)
    assert "Status : DRAINING\n" in daemons_list([draining], EST, 1)


def test_lsr_table_follows_lsd() -> None:
    """R6: byte for byte as in golden/."""
    assert regions_table(REGIONS, NOW_US, EST) == golden("lsr_table.txt")


def test_lsr_list_follows_lsd() -> None:
    """R6: byte for byte as in golden/."""
    assert regions_list(REGIONS, EST) == golden("lsr_list.txt")


def test_empty_lists() -> None:
    """R6: a table keeps its header, a list is empty."""
    assert len(daemons_table([], NOW_US, EST).splitlines()) == 5
    assert len(regions_table([], NOW_US, EST).splitlines()) == 4
    assert (daemons_list([], EST, 0), regions_list([], EST)) == ("", "")


@pytest.mark.parametrize(
    ("micros", "short", "long"),
    [
        (0, "0:00:00", "00000:00:00"),
        (-5, "0:00:00", "00000:00:00"),
        (1_957_601_304, "0:32:37", "00000:32:37"),
        (3_599_999_999, "0:59:59", "00000:59:59"),
        (26 * 3_600_000_000, "26:00:00", "00026:00:00"),
        (99_999 * 3_600_000_000, "99999:00:00", "99999:00:00"),
    ],
)
def test_up_times(micros: int, short: str, long: str) -> None:
    """R6: the hours continue past a day."""
    assert (up_time_text(micros), long_up_time_text(micros)) == (short, long)


def test_times_have_twelve_hours() -> None:
    """R6: with AM or PM and the zone; None is the machine's zone."""
    assert time_text(STARTED_US, EST) == "2014-02-18 11:23:02 AM EST"
    assert time_text(NOW_US + 3_600_000_000, EST) == "2014-02-18 12:50:29 PM EST"
    assert len(time_text(NOW_US, None).split()) >= 3


def test_lsc_shows_stores_and_connections_under_the_names_of_the_reference() -> None:
    """R14: a store's counts are the sums of its connections'."""
    assert stores_table(STORES) == golden("lsc_table.txt")
    assert stores_list(STORES) == golden("lsc_list.txt")
