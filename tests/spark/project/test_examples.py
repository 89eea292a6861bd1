"""Every Spark program of examples/ prints, line by line, what its docstring says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from spark_jms.setup import find_java
from tests.harness.project import PROJECT
from tests.harness.users.pages import lines, says_it_prints

PANDAS = "spark_pandas.py"
# The others by test_standalone_cluster.py, test_connect.py, test_pipeline.py, test_poison.py and test_readme.py.
ELSEWHERE = {
    PANDAS,
    "spark_cluster.py",
    "spark_connect.py",
    "spark_pipeline.py",
    "spark_poison.py",
    "spark_send_receive.py",
}
EXAMPLES = sorted({path.name for path in (PROJECT / "examples").glob("spark_*.py")} - ELSEWHERE)

pytestmark = pytest.mark.timeout(450)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_its_docstring_says(name: str, run_example: Callable[[str], list[str]]) -> None:
    """C1, C5, C20: as a program, in the session of the other tests. By python and by spark-submit, test_readme.py runs one."""
    assert run_example(name) == says_it_prints(PROJECT / "examples" / name)


def test_example_with_pandas_prints_what_its_docstring_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """C1: by python, in a session of its own, since Spark's processes have no pandas in the session of the tests."""
    monkeypatch.setenv("JAVA_HOME", str(find_java().home))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    example = PROJECT / "examples" / PANDAS
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert lines(done.stdout) == says_it_prints(example)
