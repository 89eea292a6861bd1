"""Command lines that start and stop a daemon (R3)."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import CommandUsageError
from spark_jms.store.regions.daemon.logs import LogSettings
from spark_jms.store.regions.daemon.options import (
    START_TABLE,
    STOP_TABLE,
    StartOptions,
    StopOptions,
    help_text,
    parse_start,
    parse_stop,
    usage,
)


def test_options_have_defaults() -> None:
    """R3, R5: those of the reference; a stop is safe by default."""
    assert parse_start([]) == StartOptions(".", 0, 2, ".", 500, 10)
    assert parse_stop([]) == StopOptions(".", 0, force=False)
    assert parse_stop(["-safe"]) == StopOptions()
    defaults = LogSettings()
    assert (defaults.level, defaults.file_size_mb, defaults.file_max) == (2, 500, 10)


def test_options_may_come_in_any_order() -> None:
    """R3: for starting and stopping."""
    words = "-logfilemax 3 -dir /gd -localindex 2 -loglevel 7 -logdir /var/log -logfilesize 20"
    assert parse_start(words.split()) == StartOptions("/gd", 2, 7, "/var/log", 20, 3)
    assert parse_stop(["-force", "-localindex", "1", "-dir", "x"]) == StopOptions("x", 1, force=True)


@pytest.mark.parametrize("word", ["-help", "-h", "-?"])
def test_help_is_found_anywhere(word: str) -> None:
    """R3: even beside wrong options."""
    assert parse_start(["-dir", word]).help
    assert parse_stop(["-nonsense", word]).help


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("-dir", "-dir needs a value: path"),
        ("-dir -localindex 1", "-dir needs a value: path"),
        ("-localindex -1", "-localindex '-1', allowed are 0 to 2147483647"),
        ("-localindex 2147483648", "-localindex"),
        ("-loglevel high", "-loglevel 'high'"),
        ("-logfilesize 0", "-logfilesize '0', allowed are 1 to"),
        ("-logfilemax 1001", "-logfilemax '1001', allowed are 1 to 1000"),
        ("-logfilemax 1_0", "-logfilemax '1_0'"),
        ("-dir a -dir b", "-dir is given twice"),
        ("-force", "there is no option -force; there are -dir, -localindex, -loglevel"),
        ("--dir x", "there is no option --dir"),
        ("here", "unexpected 'here'"),
    ],
)
def test_usage_error_names_the_wrong_option(words: str, reason: str) -> None:
    """R3: with the usage."""
    with pytest.raises(CommandUsageError) as caught:
        parse_start(words.split(), "jmsq store daemon start")
    assert caught.value.reason.startswith(reason)
    assert caught.value.usage.startswith("jmsq store daemon start [-dir path] [-localindex idx]")
    assert "Usage: jmsq" in str(pickle.loads(pickle.dumps(caught.value)))


def test_force_and_safe_exclude_each_other() -> None:
    """R3, R4: with a usage error."""
    with pytest.raises(CommandUsageError, match="-force and -safe exclude each other"):
        parse_stop(["-safe", "-force"])


def test_help_names_every_option() -> None:
    """R3: in lines of at most 120 characters."""
    assert usage(STOP_TABLE) == "[-dir path] [-localindex idx] [-force | -safe | -cancel]"
    for table in (START_TABLE, STOP_TABLE):
        text = help_text("program", table)
        assert all(f"\n  {option.name}" in text for option in table)
        assert text.endswith("  -? | -h | -help\n      this help\n")
        assert max(map(len, text.splitlines())) <= 120


@given(st.lists(st.one_of(st.sampled_from([o.name for o in START_TABLE]), st.text(max_size=12)), max_size=8))
def test_parse_gives_options_or_a_usage_error(words: list[str]) -> None:
    """R3: for any words."""
    try:
        options = parse_start(words)
    except CommandUsageError:
        return
    assert options.localindex >= 0
    assert options.log_file_max >= 1
