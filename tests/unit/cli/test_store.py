"""`jmsq store` and `storeadmin` for a person who tries them: help, the directory, options that contradict a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_jms.cli.__main__ import cli
from spark_jms.store.errors import ClusterMismatchError, ShutdownRefusedError
from spark_jms.store.regions.admin.cli import main as storeadmin
from spark_jms.store.regions.admin.cli import usual_directory
from spark_jms.store.regions.admin.cluster import Cluster


def jmsq(*words: str) -> Result:
    return CliRunner().invoke(cli, words)


@pytest.mark.parametrize("word", ["--help", "-help", "-h", "-?"])
def test_help_of_daemon_lists_its_options(word: str) -> None:
    """R3"""
    shown = jmsq("store", "daemon", word)
    assert shown.exit_code == 0
    assert "Usage: jmsq store daemon start [-dir path] [-localindex idx]" in shown.stdout
    assert "Usage: jmsq store daemon stop [-dir path] [-localindex idx] [-force | -safe | -cancel]" in shown.stdout


@pytest.mark.parametrize("words", [(), ("sart",)])
def test_wrong_action_of_daemon_names_the_right_ones(words: tuple[str, ...]) -> None:
    """R3"""
    refused = jmsq("store", "daemon", *words)
    assert refused.exit_code == 2
    assert "give start or stop; jmsq store daemon -help lists the options" in refused.stderr


@pytest.mark.parametrize("word", ["--help", "-help"])
def test_help_of_admin_lists_its_commands(word: str) -> None:
    """R6"""
    shown = jmsq("store", "admin", word)
    assert shown.exit_code == 0
    assert "rsattach" in shown.stdout
    assert storeadmin([word]) == 0


def test_storeadmin_finds_what_store_up_created(tmp_path: Path) -> None:
    """R6: RS_DIRECTORY, then the working directory, then ./replicated-store."""
    assert usual_directory({}, tmp_path) == "."
    Cluster(str(tmp_path / "replicated-store")).write_config()
    assert usual_directory({}, tmp_path) == "replicated-store"
    assert usual_directory({"RS_DIRECTORY": "/srv/rs"}, tmp_path) == "/srv/rs"
    Cluster(str(tmp_path)).write_config()
    assert usual_directory({}, tmp_path) == "."


def test_store_up_refuses_options_that_an_existing_cluster_contradicts(tmp_path: Path) -> None:
    """R1, R2: it started the three daemons of the file and said nothing."""
    cluster = Cluster(str(tmp_path))
    cluster.write_config()
    cluster.write_config(3, "1024M")
    with pytest.raises(ClusterMismatchError, match="names 3 daemons, not 5: leave the option out, or change the file"):
        cluster.write_config(5)
    with pytest.raises(ClusterMismatchError, match="gives its daemons 1024 MB, not 2G"):
        cluster.write_config(memory="2G")
    refused = jmsq("store", "up", "--dir", str(tmp_path), "--daemons", "5")
    assert refused.exit_code != 0
    assert not (tmp_path / "logs").exists(), "nothing was started"


def test_refused_shutdown_names_the_option_of_each_program() -> None:
    """R4"""
    assert "-force (of `jmsq store down`: --force)" in str(ShutdownRefusedError())
