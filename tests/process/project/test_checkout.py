"""A checkout without links: `store/` is imported as spark_jms.store through spark_jms/store.py (C11, S9)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.project import PROJECT

COMMIT = """
import sys, spark_jms.store
from spark_jms.store import Put, open_store
with open_store(sys.argv[1]) as store, store.connect("test") as session:
    session.open("record").commit([Put("key", b"value")])
    print(store.peek("record"), spark_jms.store.__file__)
"""
IN_SPARK = """
import sys, spark_jms
from spark_jms.setup import spark_session

def place(rows):
    import spark_jms.store
    yield spark_jms.store.__file__

root = sys.argv[1]
spark_jms.apply(root, {"destinations": {"orders": {"kind": "queue"}}})
with spark_jms.connect(root) as context:
    for n in range(3):
        context.producer("orders").send(text=str(n))
spark = spark_session("checkout")
rows = spark.read.format("jmsq").option("root", root).option("destination", "orders").load()
print(rows.count(), *spark.sparkContext.parallelize([0], 1).mapPartitions(place).collect())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what git has of the packages."""
    copy = tmp_path_factory.mktemp("checkout")
    for name in ("spark_jms", "store"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(PROJECT / name, copy / name, symlinks=True, ignore=ignored)
    (copy / "spark_jms/store").unlink(missing_ok=True)
    shutil.copy(PROJECT / "pyspark_jmsq.py", copy)
    assert not [path for path in copy.rglob("*") if path.is_symlink()]
    return copy


def run(checkout: Path, program: str, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    return subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_checkout_has_the_store_at_its_place(checkout: Path, tmp_path: Path) -> None:
    """S9: a commit works, and each module is the file of the tree."""
    done = run(checkout, COMMIT, str(tmp_path / "store"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("} ") == ["{'key': b'value'", f"{checkout}/store/__init__.py\n"]


def test_store_is_no_package_of_its_own(checkout: Path, tmp_path: Path) -> None:
    """S9: two copies of one package would make two of each error class."""
    done = run(checkout, "import store", cwd=tmp_path)
    assert "this package is spark_jms.store" in done.stderr


def test_half_a_copy_is_refused_by_name(checkout: Path, tmp_path: Path) -> None:
    """C11: as in a zip or a folder for `--py-files` that has spark_jms alone."""
    shutil.copytree(checkout / "spark_jms", tmp_path / "spark_jms")
    done = run(tmp_path, "import spark_jms.store", cwd=tmp_path)
    assert "Build and install the wheel instead" in done.stderr


@pytest.mark.spark
def test_workers_of_spark_find_the_store(checkout: Path, tmp_path: Path) -> None:
    """C1, S9"""
    done = run(checkout, IN_SPARK, str(tmp_path / "domain"), cwd=tmp_path)
    assert done.stdout.split() == ["3", f"{checkout}/store/__init__.py"], done.stderr
