"""Every Spark program of examples/ prints, line by line, what its docstring says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pages import PROJECT, says_it_prints

# By test_standalone_cluster.py, test_poison.py and test_readme.py.
ELSEWHERE = {"spark_cluster.py", "spark_poison.py", "spark_send_receive.py"}
EXAMPLES = sorted({path.name for path in (PROJECT / "examples").glob("spark_*.py")} - ELSEWHERE)

pytestmark = pytest.mark.timeout(450)


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_prints_what_its_docstring_says(name: str, run_example: Callable[[str], list[str]]) -> None:
    """C1, C5, C20: as a program, in the session of the other tests. By python and by spark-submit, test_readme.py runs one."""
    assert run_example(name) == says_it_prints(PROJECT / "examples" / name)
