"""A client-only installation: the wheel without extras in an empty environment (C11)."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

import pytest

from tests.harness.project import PROJECT
from tests.harness.users.installation import Installation, installation, must, run, sdist_and_wheel, sdist_names

PACKAGES = ("spark_jms", "store")
NOT_SHIPPED = {".sh", ".pyc"}
NOT_THERE = (
    "numpy",
    "pyspark",
    "delta",
    "deltalake",
    "pandas",
    "obstore",
    "sqlalchemy",
    "psycopg",
    "msgspec",
    "aiohttp",
)
MODULE_FILE = "destinations: {orders: {kind: queue}}\n"
PROGRAM = """
import sys
from spark_jms import connect
with connect(sys.argv[1]) as context:
    producer = context.producer("orders")
    for n in range(60):
        producer.send(text=str(n), properties={"odd": bool(n % 2)})
    consumer = context.consumer("orders", selector="odd = true")
    while message := consumer.receive(timeout=1):
        message.acknowledge()
    print(sum(1 for _ in context.browser("orders")))
"""
WITHOUT = {
    "spark": ("python", "-c", "from spark_jms.setup import spark_session; spark_session('x')"),
    "replicated": ("jmsq", "store", "up"),
    "replicated, storeadmin": ("storeadmin", "lsd"),
    "console": ("jmsq", "--root", "x", "console"),
    "metrics": ("jmsq", "--root", "x", "metrics"),
    "postgresql": ("jmsq", "store", "check", "jdbc:sqlite:///x.db"),
    "objectstore": ("jmsq", "--root", "s3://bucket/root", "list"),
}

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def client() -> Installation:
    return installation()


def test_wheel_and_sdist_contain_every_file_of_the_packages() -> None:
    sdist, wheel = sdist_and_wheel()
    expected = {
        path.relative_to(PROJECT).as_posix()
        for package in PACKAGES
        for path in (PROJECT / package).rglob("*")
        if path.is_file() and path.suffix not in NOT_SHIPPED and "__pycache__" not in path.parts
    }
    expected = {name for name in expected if not name.startswith("spark_jms/store/")}  # through the link
    names = set(zipfile.ZipFile(wheel).namelist())
    installed = {f"spark_jms/{name}" if name.startswith("store/") else name for name in expected}
    assert sorted({*installed, "pyspark_jmsq.py"} - {"spark_jms/store.py"} - names) == []
    assert "spark_jms/store.py" not in names  # the folder is in its place
    assert sorted({*expected, "pyspark_jmsq.py", "setup.py", "README.md", "LICENSE"} - sdist_names(sdist)) == []
    strangers = {name.split("/")[0] for name in names} - {"spark_jms", "pyspark_jmsq.py"}
    assert [name for name in strangers if not name.endswith(".dist-info")] == []


def test_an_index_accepts_wheel_and_sdist(tmp_path: Path) -> None:
    """C11: twine and check-wheel-contents, in an environment of their own, find nothing wrong with either."""
    sdist, wheel = sdist_and_wheel()
    tools = Installation(tmp_path / "tools")
    must(run([sys.executable, "-m", "venv", "--without-pip", str(tools.venv)], cwd=tmp_path))
    tools.pip("install", "--no-compile", "twine", "check-wheel-contents")
    assert "PASSED" in must(tools.run("twine", "--no-color", "check", "--strict", str(sdist), str(wheel), cwd=tmp_path))
    settings = ("--config", str(PROJECT / "pyproject.toml"))
    must(tools.run("check-wheel-contents", *settings, str(wheel), cwd=tmp_path))


def test_client_installation_brings_the_client_only(client: Installation, tmp_path: Path) -> None:
    """C11: and it is consistent."""
    client.pip("check")
    find = f"from importlib.util import find_spec; print([n for n in {NOT_THERE!r} if find_spec(n)])"
    assert must(client.run("python", "-c", find, cwd=tmp_path)).strip() == "[]"


def test_client_installation_is_pyarrow_and_20_megabytes(client: Installation) -> None:
    """C11: as pip unpacks it. What Python compiles of it later is about as large as the sources that are used."""
    (packages,) = client.venv.glob("lib/*/site-packages")
    sizes: dict[str, int] = {}
    for path in (path for path in packages.rglob("*.*") if path.is_file() and path.suffix != ".pyc"):
        package = path.relative_to(packages).parts[0]
        sizes[package] = sizes.get(package, 0) + path.stat().st_size
    arrow = sum(size for package, size in sizes.items() if package.startswith("pyarrow"))
    assert sum(sizes.values()) - arrow <= 20_000_000, sorted(sizes.items(), key=lambda item: item[1])[-6:]
    assert arrow <= 200_000_000


def test_client_and_commands_work_without_any_extra(client: Installation, tmp_path: Path) -> None:
    """C11, C14, C13: sending, receiving, and housekeeping with its Delta checkpoint."""
    (tmp_path / "module.yaml").write_text(MODULE_FILE, encoding="utf-8")
    must(client.run("jmsq", "apply", "--root", "domain", "module.yaml", cwd=tmp_path))
    assert must(client.run("python", "-c", PROGRAM, "domain", cwd=tmp_path)).split() == ["30"]
    must(client.run("jmsq", "housekeep", "--root", "domain", "--once", cwd=tmp_path))
    assert list(tmp_path.glob("domain/orders/_delta_log/*.checkpoint.parquet"))
    (orders,) = json.loads(must(client.run("jmsq", "stat", "--root", "domain", "--json", cwd=tmp_path)))["destinations"]
    assert (orders["sent"], orders["backlog"]) == (60, 30)
    for command in ("list", "browse orders", "subscriptions orders", "claims", "acks orders", "describe"):
        must(client.run("jmsq", "--root", "domain", *command.split(), cwd=tmp_path))


@pytest.mark.parametrize("part", WITHOUT)
def test_missing_packages_name_their_extra(client: Installation, part: str, tmp_path: Path) -> None:
    """C11: one line, no traceback in a command."""
    done = client.run(*WITHOUT[part], cwd=tmp_path)
    assert done.returncode == 1
    advice = f"is not installed: pip install 'spark-jms[{part.partition(',')[0]}]'"
    assert done.stderr.strip().endswith(advice), done.stderr
    assert part == "spark" or len(done.stderr.splitlines()) == 1
