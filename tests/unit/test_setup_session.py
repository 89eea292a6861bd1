from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_jms.setup import session as session_module
from spark_jms.setup.errors import DeltaJarsMissingError
from spark_jms.setup.session import DELTA, LOCAL, SPARK_DEFAULTS, session_conf

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def jars(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    paths = ["/cache/a.jar", "/cache/b.jar"]
    monkeypatch.setattr(session_module, "delta_jars", lambda: paths)
    return paths


def test_conf_file_and_session_say_the_same() -> None:
    lines = (PROJECT / "conf" / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    settings = dict(line.split(None, 1) for line in lines if line.strip() and not line.startswith("#"))
    assert {key: value.strip() for key, value in settings.items()} == dict(SPARK_DEFAULTS)


def test_a_local_session_keeps_to_loopback_and_has_delta(jars: list[str]) -> None:
    settings = session_conf("local[2]", delta=True)
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.jars"] == ",".join(jars)
    assert settings["spark.ui.enabled"] == "false"
    assert DELTA.items() <= settings.items()
    assert SPARK_DEFAULTS.items() <= settings.items()


def test_a_cluster_session_gets_nothing_local(jars: list[str]) -> None:
    assert LOCAL.keys().isdisjoint(session_conf("spark://host:7077", delta=True))


def test_the_callers_settings_win(jars: list[str]) -> None:
    conf = {"spark.ui.enabled": "true", "spark.sql.session.timeZone": "Europe/Berlin", "spark.mine": "1"}
    assert conf.items() <= session_conf("local[1]", delta=True, conf=conf).items()


def test_without_delta_no_jar_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JMSQ_CACHE", str(tmp_path))
    assert "spark.jars" not in session_conf("local[1]", delta=False)
    with pytest.raises(DeltaJarsMissingError):
        session_conf("local[1]", delta=True)


def test_looking_at_the_settings_changes_no_environment(jars: list[str]) -> None:
    before = dict(os.environ)
    session_conf("local[2]", delta=True)
    assert dict(os.environ) == before
