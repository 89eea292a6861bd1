"""The log files of a daemon, and its lines about memory use (R5)."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.store.errors import SettingInvalidError
from spark_jms.store.regions.core.memory_use import Level, LogLine, UtilizationLog
from spark_jms.store.regions.daemon.logs import (
    TRACE,
    DaemonLog,
    LogSettings,
    log_directory,
    log_file_name,
    threshold_of,
)

MIB = 1 << 20


@contextmanager
def daemon_log(path: Path, **settings: int) -> Iterator[DaemonLog]:
    log = DaemonLog(path, 3, "192.168.0.127", 8000, LogSettings(**settings), io.StringIO())
    try:
        yield log
    finally:
        log.close()


def lines(log: DaemonLog, number: int = 0) -> list[str]:
    """The lines without their times."""
    return [line.partition(" ")[2] for line in log.path(number).read_text(encoding="utf-8").splitlines()]


def files(path: Path) -> list[str]:
    return sorted(each.name for each in path.iterdir())


def test_file_name_has_fixed_width_numbers() -> None:
    """R5: three digits, the address, five digits, three digits."""
    assert log_file_name(3, "192.168.0.127", 8000, 0) == "rs_daemon_003_192.168.0.127_08000_000.log"
    assert re.fullmatch(r"rs_daemon_\d{3}_\d+\.\d+\.\d+\.\d+_\d{5}_\d{3}\.log", log_file_name(0, "10.0.0.1", 49151, 9))


@pytest.mark.parametrize(
    ("logdir", "expected"),
    [
        (".", "/scratch/rs_global_dir/logs"),
        ("./logs", "/scratch/rs_global_dir/logs/logs"),
        ("a/b", "/scratch/rs_global_dir/logs/a/b"),
        ("/var/log/rs", "/var/log/rs"),
    ],
)
def test_log_directory_is_relative_to_the_global_directory(logdir: str, expected: str) -> None:
    """R5, R3: to its logs folder; an absolute one stays as it is."""
    assert log_directory("/scratch/rs_global_dir", logdir) == Path(expected)


def test_log_settings_have_defaults() -> None:
    """R5, R3: level 2, 500 MB, 10 files."""
    assert LogSettings() == LogSettings(level=2, file_size_mb=500, file_max=10)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("level", -1), ("file_size_mb", 0), ("file_max", 0), ("file_max", 1001), ("file_size_mb", 1 << 21)],
)
def test_log_settings_have_ranges(setting: str, value: int) -> None:
    """R5: the error names them."""
    with pytest.raises(SettingInvalidError, match="allowed are"):
        LogSettings(**{setting: value})


@pytest.mark.parametrize(
    ("level", "expected"),
    [(1, "e"), (2, "ewi"), (3, "ewid"), (4, "ewidt"), (99, "ewidt")],
)
def test_level_selects_lines(tmp_path: Path, level: int, expected: str) -> None:
    """R5: 1 errors, 2 also warnings and information, 3 also debugging, every higher number also traces."""
    with daemon_log(tmp_path, level=level) as log:
        for number, text in (
            (logging.ERROR, "e"),
            (logging.WARNING, "w"),
            (logging.INFO, "i"),
            (10, "d"),
            (TRACE, "t"),
        ):
            log.logger.log(number, text)
        assert "".join(line[-1] for line in lines(log)) == expected
        assert log.statistics().lines == len(expected)


def test_level_0_writes_nothing(tmp_path: Path) -> None:
    """R5: no file and no directory; the lines of a start still go to stdout."""
    stdout = io.StringIO()
    log = DaemonLog(tmp_path / "logs", 0, "127.0.0.1", 4545, LogSettings(level=0), stdout)
    log.bootstrap("ready")
    log.logger.critical("end of the world")
    assert (stdout.getvalue(), files(tmp_path)) == ("ready\n", [])
    assert threshold_of(0) > logging.CRITICAL
    log.close()


def test_start_lines_go_to_file_and_stdout(tmp_path: Path) -> None:
    """R5: at level 1 too."""
    stdout = io.StringIO()
    log = DaemonLog(tmp_path, 0, "127.0.0.1", 4545, LogSettings(level=1), stdout)
    log.bootstrap("listening on 127.0.0.1:4545")
    log.logger.info("not at this level")
    assert stdout.getvalue() == "listening on 127.0.0.1:4545\n"
    assert lines(log) == ["INFO    listening on 127.0.0.1:4545"]
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z INFO ", log.path().read_text(encoding="utf-8"))
    log.close()


def test_rotation_keeps_the_newest_file_as_000(tmp_path: Path) -> None:
    """R5: each rotation adds one to every number and deletes the file that would get number logfilemax; no file exceeds
    its maximum size."""
    line = "x" * (MIB // 2 - 200)
    with daemon_log(tmp_path, file_size_mb=1, file_max=3) as log:
        for number in range(9):
            log.logger.info("%d%s", number, line)
        assert [lines(log, number)[0][8] for number in range(3)] == ["8", "6", "4"]
        assert files(tmp_path) == [log_file_name(3, "192.168.0.127", 8000, number) for number in range(3)]
        assert all(path.stat().st_size <= MIB for path in tmp_path.iterdir())
        assert log.statistics().rotations == 4


def test_rotation_with_a_single_file(tmp_path: Path) -> None:
    """R5: logfilemax 1, and a line larger than the file."""
    with daemon_log(tmp_path, file_size_mb=1, file_max=1) as log:
        log.logger.info("%s", "a" * (MIB + 1))
        log.logger.info("b")
        assert files(tmp_path) == [log.path().name]
        assert lines(log) == ["INFO    b"]


def test_restart_appends_to_000(tmp_path: Path) -> None:
    """R5: and deletes files above a smaller logfilemax, but none of other daemons."""
    for number in (0, 1, 2, 7):
        (tmp_path / log_file_name(3, "192.168.0.127", 8000, number)).write_text(f"t old {number}\n")
    other = log_file_name(4, "192.168.0.127", 8000, 9)
    (tmp_path / other).write_text("t other\n")
    with daemon_log(tmp_path, file_max=2) as log:
        log.logger.info("new")
        assert lines(log) == ["old 0", "INFO    new"]
        assert files(tmp_path) == [log.path(0).name, log.path(1).name, other]


def test_log_files_are_closed_to_others(tmp_path: Path) -> None:
    """R5, R17: file and directory."""
    with daemon_log(tmp_path / "a" / "logs") as log:
        assert stat.S_IMODE(log.path().stat().st_mode) & 0o027 == 0
        assert stat.S_IMODE(log.directory.stat().st_mode) & 0o027 == 0


def test_log_does_not_follow_a_symbolic_link(tmp_path: Path) -> None:
    """R17: in the place of its file."""
    (tmp_path / log_file_name(3, "192.168.0.127", 8000, 0)).symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), daemon_log(tmp_path):
        pass
    assert not (tmp_path / "victim").exists()


def test_log_indents_further_lines_of_a_message(tmp_path: Path) -> None:
    """R5: so a message cannot forge another line; any text can be written."""
    with daemon_log(tmp_path) as log:
        log.logger.info("one\n2026-01-01T00:00:00.000Z ERROR   forged \ud800")
        assert log.path().read_text(encoding="utf-8").splitlines()[1].startswith("    2026")


def test_log_counts_lines_lost_to_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: the daemon continues, and the next line tells how many were lost."""
    with daemon_log(tmp_path) as log:

        def full(fd: int, data: bytes) -> int:
            raise OSError(errno.ENOSPC, "full")

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            log.logger.info("lost")
            log.logger.info("lost")
        log.logger.info("kept")
        assert log.statistics().lost_lines == 2
        text = log.path().read_text(encoding="utf-8").splitlines()
        assert "2 lines before this one were lost" in text[0]
        assert text[1].endswith("kept")


# ---- utilization


def fed(log: UtilizationLog, *used: int) -> list[tuple[Level, str]]:
    return [(line.level, line.text.partition(":")[0]) for each in used for line in log.feed(each)]


def test_utilization_logs_each_tenth() -> None:
    """R5: upwards and downwards, INFO below 80 % and WARNING from there."""
    log = UtilizationLog(1000, 3)
    went = "memory utilization went"
    assert fed(log, 99, 100, 150, 199, 200) == [(Level.INFO, f"{went} above 10 %"), (Level.INFO, f"{went} above 20 %")]
    assert fed(log, 199) == [(Level.INFO, f"{went} below 20 %")]
    assert fed(log, 799)[-1] == (Level.INFO, f"{went} above 70 %")
    assert fed(log, 800, 900) == [(Level.WARNING, f"{went} above 80 %"), (Level.WARNING, f"{went} above 90 %")]
    assert fed(log, 850, 799) == [(Level.WARNING, f"{went} below 90 %"), (Level.INFO, f"{went} below 80 %")]
    assert fed(log, 1000)[-1] == (Level.WARNING, f"{went} above 100 %")


def test_utilization_line_shows_the_use() -> None:
    """R5: in MB and percent."""
    (line,) = UtilizationLog(1024 * MIB, 3).feed(200 * MIB)
    assert line == LogLine(Level.INFO, "memory utilization went above 10 %: 200 of 1024 MB (19.53 %)")


def test_utilization_is_logged_from_level_3() -> None:
    """R5: and not below."""
    assert fed(UtilizationLog(100, 2), 50, 90) == []
    assert len(fed(UtilizationLog(100, 7), 50)) == 5


def test_levels_are_those_of_logging() -> None:
    """R5: so that a line needs no translation."""
    assert [int(level) for level in Level] == [logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR]


@given(st.lists(st.integers(0, 1300), max_size=40))
def test_every_tenth_passed_is_logged(used: list[int]) -> None:
    """R5: lines upwards minus lines downwards give the present tenth."""
    log = UtilizationLog(1000, 3)
    texts = [text for _, text in fed(log, *used)]
    ups, downs = sum("above" in text for text in texts), sum("below" in text for text in texts)
    assert ups - downs == (used[-1] // 100 if used else 0)
    assert len(texts) == sum(abs(b // 100 - a // 100) for a, b in zip([0, *used], used, strict=False))
