"""The imports between the packages (contracts in pyproject.toml), and what a light import may bring in."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.harness.project import PROJECT

LINT_IMPORTS = "import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())"
HEAVY = ("pyarrow", "deltalake", "obstore", "pandas", "numpy", "pydantic", "lark", "click", "rich", "yaml")


def run_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT, capture_output=True, text=True, timeout=60, check=False
    )


def heavy_after(statement: str, heavy: tuple[str, ...]) -> list[str]:
    done = run_python(f"{statement}\nimport sys\nprint(*sorted({set(heavy)!r} & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_arrows_point_one_way() -> None:
    done = run_python(LINT_IMPORTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_core_asks_for_no_clock_chance_or_file() -> None:
    """Ways around the import contract: calls that need no module of the forbidden list."""
    methods, builtins = {"now", "utcnow", "today", "fromtimestamp", "uuid1", "uuid4"}, {"open", "__import__", "input"}
    found = []
    for path in sorted((PROJECT / "spark_jms" / "core").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Call(func=ast.Attribute(attr=name)) if name in methods:
                    found.append(f"{path.relative_to(PROJECT)}:{node.lineno}: .{name}()")
                case ast.Call(func=ast.Name(id=name)) if name in builtins:
                    found.append(f"{path.relative_to(PROJECT)}:{node.lineno}: {name}()")
    assert found == []


@pytest.mark.parametrize(
    "statement",
    [
        "from spark_jms import apply, connect",
        "from spark_jms.admin import connect",
        "import spark_jms.setup",
        "import spark_jms.store",
    ],
)
def test_importing_a_package_is_light(statement: str) -> None:
    assert heavy_after(statement, (*HEAVY, "pyspark")) == []


def test_metrics_load_no_package_of_another_extra() -> None:
    """M5, C11: `pip install spark-jms[metrics]` is enough for a domain without a replicated store."""
    others = ("msgspec", "aiohttp", "uvloop", "sqlalchemy", "obstore", "pyspark")
    assert heavy_after("import spark_jms.metrics, spark_jms.admin.domain_sample", others) == []


def test_the_module_spark_finds_is_light() -> None:
    """Spark imports it in every planning worker of every query, whether the query is ours or not."""
    pysparks_own = heavy_after("import pyspark.sql.datasource", HEAVY)
    assert sorted(set(heavy_after("import pyspark_jmsq", HEAVY)) - set(pysparks_own)) == []
