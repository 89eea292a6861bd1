"""Memory pressure of the region store: its settings and their effects (R13)."""

from __future__ import annotations

import pickle

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.settings.store import Thresholds
from spark_jms.store.errors import ResourceAllocationException, SettingInvalidError, StoreError
from spark_jms.store.regions.core.memory_use import (
    SETTINGS,
    Band,
    Level,
    SpaceLog,
    band_of,
    check_message_size,
    check_new_message,
    maximum_message_size_bytes,
    parse_thresholds,
    refuses_open,
    rejects_new_messages,
)

DEFAULT = Thresholds()


def test_thresholds_have_defaults() -> None:
    """R13: those of the reference."""
    assert parse_thresholds({}, "s") == Thresholds(1, 70, 10, 80, 90)


@pytest.mark.parametrize("prefix", ["store.replicated.", "weblogic.store.replicated."])
@pytest.mark.parametrize(("place", "setting"), list(enumerate(SETTINGS)))
def test_settings_apply_to_all_stores_or_to_one(prefix: str, place: int, setting: str) -> None:
    """R13: a store's own setting overrides the common one; those of other stores do not count."""
    settings = {
        f"{prefix}{setting}": "33",
        f"{prefix}my.store.{setting}": 44,
        f"{prefix}other.{setting}": 55,
        "PATH": "/bin",
        "store.replicated.RegionSize": "8M",
    }
    fields = [field.name for field in attrs.fields(Thresholds)]
    assert getattr(parse_thresholds(settings, "my.store"), fields[place]) == 44
    assert getattr(parse_thresholds(settings, "s"), fields[place]) == 33


def test_settings_may_be_nested() -> None:
    """R13: as YAML nests them at the dots."""
    settings = {"store": {"replicated": {"SpaceOverloadRedPercent": 95, "billing": {"SpaceOverloadRedPercent": 97}}}}
    assert parse_thresholds(settings, "billing").space_overload_red_percent == 97
    assert parse_thresholds(settings, "orders").space_overload_red_percent == 95


@pytest.mark.parametrize("value", ["0", 0, 101, "101", "-1", "1%", "", "1.5", 1.5, True, None, "٣", "9" * 5000])
def test_value_out_of_range_is_refused(value: object) -> None:
    """R13: the error names the setting and the range, 1 to 100."""
    name = "store.replicated.s.SpaceLoggingDeltaPercent"
    with pytest.raises(SettingInvalidError) as caught:
        parse_thresholds({name: value}, "another")
    assert caught.value.name == name
    assert "1 to 100" in str(pickle.loads(pickle.dumps(caught.value)))


def test_misspelt_setting_is_refused() -> None:
    """R13: it would otherwise leave the default in force."""
    with pytest.raises(
        SettingInvalidError, match="there is no 'SpaceOverloadYelowPercent'; there are Max.*mean 'SpaceOverloadYellow"
    ):
        parse_thresholds({"store.replicated.SpaceOverloadYelowPercent": 50}, "s")


def test_both_prefixes_must_agree() -> None:
    """R13: when a setting is given with each of them."""
    both = {f"{prefix}store.replicated.SpaceOverloadRedPercent": 95 for prefix in ("", "weblogic.")}
    assert parse_thresholds(both, "s").space_overload_red_percent == 95
    with pytest.raises(SettingInvalidError, match="both name one setting"):
        parse_thresholds({**both, "store.replicated.SpaceOverloadRedPercent": 96}, "s")


def test_thresholds_check_their_values() -> None:
    """R13: when they are made."""
    with pytest.raises(SettingInvalidError, match="SpaceLoggingStartPercent=0"):
        Thresholds(space_logging_start_percent=0)


def test_message_size_is_limited() -> None:
    """R13: to a percentage of the region; one byte more raises ResourceAllocationException."""
    assert maximum_message_size_bytes(DEFAULT, 1000) == 10
    check_message_size(DEFAULT, 10, 1000)
    with pytest.raises(ResourceAllocationException, match="11 bytes, at most 10"):
        check_message_size(DEFAULT, 11, 1000)
    check_message_size(Thresholds(maximum_message_size_percent=100), 1000, 1000)
    assert issubclass(ResourceAllocationException, StoreError)


@pytest.mark.parametrize(
    ("daemon_used", "store_used", "rejected"), [(81, 81, True), (80, 81, False), (81, 80, False), (100, 0, False)]
)
def test_messages_are_rejected_above_yellow(daemon_used: int, store_used: int, rejected: bool) -> None:
    """R13: when both the daemon and the store exceed it."""
    assert rejects_new_messages(DEFAULT, daemon_used, 100, store_used, 100) is rejected
    if rejected:
        with pytest.raises(ResourceAllocationException, match=r"81\.00 % used"):
            check_new_message(DEFAULT, daemon_used, 100, store_used, 100)
    else:
        check_new_message(DEFAULT, daemon_used, 100, store_used, 100)


def test_store_without_a_region_accepts_messages() -> None:
    """R13: an empty store exceeds no percentage."""
    assert not rejects_new_messages(DEFAULT, 100, 100, 0, 0)


@pytest.mark.parametrize(("used", "refused"), [(90, False), (91, True)])
def test_stores_do_not_open_above_red(used: int, refused: bool) -> None:
    """R13: at the threshold they still do."""
    assert refuses_open(DEFAULT, used, 100) is refused


def seen(thresholds: Thresholds, *used: int) -> list[tuple[int, Level]]:
    log = SpaceLog(thresholds, "s")
    return [(each, line.level) for each in used if (line := log.observe(each, 100))]


def test_log_lines_as_use_rises() -> None:
    """R13: INFO from start, WARNING above yellow, ERROR above red."""
    used = range(101)
    assert seen(DEFAULT, *used) == [(70, Level.INFO), (80, Level.INFO), (81, Level.WARNING), (91, Level.ERROR)]


def test_log_lines_as_use_falls() -> None:
    """R13: at the level of the band it falls to; the last line ends the episode."""
    assert seen(DEFAULT, 95, 91, 90, 85, 80, 75, 69, 50, 0) == [
        (95, Level.ERROR),
        (90, Level.WARNING),
        (80, Level.INFO),
        (69, Level.INFO),
    ]


def test_delta_counts_from_the_last_line() -> None:
    """R13: a smaller delta logs more lines, inside a band too."""
    finer = Thresholds(space_logging_delta_percent=3)
    assert [used for used, _ in seen(finer, *range(69, 80))] == [70, 73, 76, 79]
    assert [used for used, _ in seen(finer, 70, 71, 72, 71, 70, 74, 72, 71)] == [70, 74, 71]


def test_log_line_names_store_use_and_setting() -> None:
    """R13: and the effect of the setting."""
    line = SpaceLog(DEFAULT, "billing").observe(850 << 20, 1000 << 20)
    assert line is not None
    assert line.text == (
        "store billing: daemon memory 850 of 1000 MB used (85.00 %), above SpaceOverloadYellowPercent=80: "
        "new messages are rejected while this store's regions are above it too"
    )


percents = st.integers(1, 100)


@given(st.builds(Thresholds, percents, percents, percents, percents, percents), st.lists(st.integers(0, 120)))
def test_every_change_of_band_is_logged(thresholds: Thresholds, used: list[int]) -> None:
    """R13: with any settings; the level of a line is that of the highest band passed."""
    log = SpaceLog(thresholds, "s")
    band = Band.BELOW_START
    for each in used:
        line = log.observe(each, 100)
        now = band_of(thresholds, each, 100)
        if now != band:
            assert line is not None
        if line is not None:
            assert line.level == {Band.YELLOW: Level.WARNING, Band.RED: Level.ERROR}.get(now, Level.INFO)
        band = now
