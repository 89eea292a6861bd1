from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jms.setup import session as session_module
from spark_jms.setup.machine import DeltaJarsMissingError
from spark_jms.setup.session import DELTA, LOCAL, SPARK_DEFAULTS, WORKER_PYTHON, session_conf, worker_python
from tests.harness.project import PROJECT


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


def test_workers_of_this_python_start_without_the_archives_of_spark(tmp_path: Path) -> None:
    """Python would compile the modules of pyspark.zip in every process."""
    variables = worker_python({"PYSPARK_PYTHON": sys.executable})
    assert variables["PYSPARK_PYTHON"] == variables["PYSPARK_DRIVER_PYTHON"] == str(WORKER_PYTHON)
    mine, home = str(tmp_path / "with space"), "/opt/spark"
    archives = [
        f"{home}/python/lib/pyspark.zip",
        f"{home}/python/lib/py4j-0.10.9.9-src.zip",
        f"{home}/jars/spark-core_2.13-4.2.0.jar",
    ]
    program = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable); print(sys.argv[1:])"
    found = subprocess.run(
        [variables["PYSPARK_PYTHON"], "-c", program, "an argument"],
        env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([*archives, mine, "/else/pyspark.zip"])},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert found == [f"{mine}:/else/pyspark.zip", sys.executable, "['an argument']"]


@pytest.mark.parametrize(
    "environment",
    [
        {"PYSPARK_PYTHON": "/usr/bin/python3"},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": "/usr/bin/python3"},
        {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": "/opt/spark"},
    ],
)
def test_another_python_or_another_spark_is_left_alone(environment: dict[str, str]) -> None:
    assert worker_python(environment) == {}


def test_what_sparks_processes_print_goes_to_the_log(tmp_path: Path) -> None:
    """C11: processes started meanwhile print there for as long as they live, and this one prints again where it did."""
    code = (
        "import subprocess, sys\n"
        "from pathlib import Path\n"
        "from spark_jms.setup.step import output_to\n"
        "with output_to(Path(sys.argv[1])):\n"
        "    child = subprocess.Popen(['sh', '-c', 'read go; echo out; echo err >&2'], stdin=subprocess.PIPE)\n"
        "print('here', flush=True)\n"
        "child.communicate(b'go')\n"
    )
    log = tmp_path / "spark.log"
    done = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("here\n", "")
    assert sorted(log.read_text(encoding="utf-8").split()) == ["err", "out"]
