"""House rules that a machine can judge (docs/STYLE.md): import circles, class names, formatting."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from tests.harness.house import circles, graph_of, missed, modules, rooms_of, tree_of
from tests.harness.project import PROJECT

ROOTS = ("spark_jms", "store", "tests/models/regions", "benchmarks")


def test_no_import_circles() -> None:
    """A package's __init__ only hands names on; it is a surface, not a part, so it does not close a circle."""
    assert circles(graph_of(modules(*ROOTS))) == []


def test_circles_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_lint_names_each_limit_that_is_not_kept() -> None:
    """`make lint` runs tests/harness/house.py."""
    lines = {"spark_jms/core/a.py": 601, "spark_jms/core/b.py": 100, "spark_jms/core/c.py": 100}
    folders = {"spark_jms/core": 16, "spark_jms/log": 2, "spark_jms": 2}
    assert missed(lines, folders, [["a", "b"]]) == [
        "spark_jms/core/a.py has 601 lines, at most 600",
        "the median module has 100 lines, at least 200",
        "spark_jms/core/ has 16 modules, at most 15",
        "spark_jms/log/ has 2 modules, at least 3",
        "a circle: a, b",
    ]


def test_rooms_are_folders_and_modules_beside_the_floors() -> None:
    known = modules()
    found = rooms_of(graph_of(known), known)
    assert {"spark_jms/core/limits", "spark_jms/errors.py", "store/contract.py", "store/regions/core"} <= set(found)
    assert "spark_jms/core/limits" in found["spark_jms/core/changes"]


def test_feature_ids_stand_in_the_last_line_of_a_module_docstring_alone() -> None:
    """A reader of the product meets sentences, not codes."""
    features = re.compile(r"Features: [CRSDTM]\d+(, [CRSDTM]\d+)* \(docs/FEATURES\.md\)")
    ids = re.compile(r"(?<![\w./-])[CRSDTM]\d{1,2}(?![\w'-])")
    wrong = []
    for name, path in modules(*ROOTS).items():
        if not name.startswith("spark_jms"):
            continue  # tests name what they prove
        text = path.read_text(encoding="utf-8")
        last = (ast.get_docstring(ast.parse(text)) or "").rpartition("\n")[2]
        rest = text.replace(f"\n{last}\n", "\n", 1) if features.fullmatch(last) else text
        wrong += [f"{name}: {line.strip()}" for line in rest.splitlines() if ids.search(line)]
    assert wrong == []


def test_a_class_name_has_one_meaning() -> None:
    """Public classes of the whole repository, nested ones included."""
    places: dict[str, list[str]] = defaultdict(list)
    for name, path in modules(*ROOTS).items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(name)
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def python_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=PROJECT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this tree is not a git checkout")
    return [PROJECT / line for line in listed.stdout.splitlines()]


def test_no_formatting_is_switched_off() -> None:
    switch = "fmt: " + "skip"
    assert [
        str(path.relative_to(PROJECT)) for path in python_files() if path.exists() and switch in path.read_text()
    ] == []


def test_make_test_looks_for_tests_with_spark_in_every_folder_that_has_some() -> None:
    """Its stage with Spark does not import the tests of the other folders."""
    (named,) = re.findall(r"^SPARK_TESTS := (.+)$", (PROJECT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    marker = "mark." + "spark"
    marked = [path for path in (PROJECT / "tests").rglob("test_*.py") if marker in path.read_text("utf-8")]
    folders = {"tests/spark", *(f"tests/{path.relative_to(PROJECT / 'tests').parts[0]}" for path in marked)}
    assert folders == set(named.split())


# Contract, process and Spark tests use what applications have, or the ports spark_jms/testing/inside.py and store/testing.py.
# These lines reach further: file -> how many, and why.
INSIDE = {
    "tests/harness/messages/poison_query.py": (2, "a source whose driver has died must not end this process"),
    "tests/contract/aio/test_aio.py": (2, "a call that a coroutine has given up is seen nowhere else"),
    "tests/contract/aio/test_end.py": (1, "the step between a message's thread and its coroutine"),
    "tests/contract/claims/upkeep/test_background_failures.py": (
        1,
        "the pause before a failed step is tried again is skipped",
    ),
    "tests/contract/client/receiving/test_shared.py": (
        1,
        "the listener's thread has met the error, and nobody has been told",
    ),
    "tests/contract/claims/consumers/test_distributed_topics.py": (1, "the source has noticed that a server is away"),
    "tests/contract/admin/test_drop.py": (2, "another process acts between two steps of a drop"),
    "tests/contract/claims/failures/test_expiration_beside_deliveries.py": (1, "time passes in the middle of a step"),
    "tests/contract/log/limits/test_flow_control.py": (2, "a debt without a send; two producers share one object"),
    "tests/contract/claims/transactions/test_last_resource.py": (
        1,
        "a closed session is no longer kept by its context",
    ),
    "tests/contract/claims/consumers/test_left_out.py": (
        1,
        "a mark as a process leaves it that is killed at this step",
    ),
    "tests/contract/log/tables/test_watch.py": (1, "the watch of the file system reports nothing any more"),
    "tests/contract/client/receiving/test_orderly_end.py": (
        2,
        "a look at the session is due at one receive and not at the next",
    ),
    "tests/contract/log/messages/test_paging.py": (1, "a page of the file is damaged, and the file has no name"),
    "tests/contract/client/receiving/test_pipeline.py": (
        1,
        "the background thread does nothing; the test does it at chosen moments",
    ),
    "tests/contract/client/context/test_pool.py": (1, "Ctrl-C comes between two steps"),
    "tests/contract/log/limits/test_quotas.py": (1, "the process dies while a send waits"),
    "tests/contract/client/receiving/test_request_reply.py": (
        2,
        "the context dies without deleting its temporary destinations",
    ),
    "tests/contract/claims/servers/test_leases.py": (1, "a term is noted in a domain that has gone"),
    "tests/contract/claims/servers/test_servers.py": (1, "the session of one server of several is lost"),
    "tests/contract/client/sending/test_shared_send.py": (1, "the destination changes between two steps of a commit"),
    "tests/contract/claims/messages/test_sorted.py": (1, "how often a backlog is sorted"),
    "tests/contract/log/upkeep/test_usage_history.py": (1, "the clean-up of one table an hour later"),
    "tests/contract/store/webhdfs/test_files.py": (1, "the memory that a writer holds"),
    "tests/harness/processes/crash_plugin/sitecustomize.py": (1, "only message files are counted as steps"),
    "tests/harness/processes/java.py": (1, "PySpark shows Hadoop's settings and Spark's classes nowhere else"),
    "tests/harness/programs/poison_app.py": (1, "PySpark tells the pid of its Java process nowhere else"),
    "tests/harness/stores/regions_writer.py": (1, "the network cuts one connection"),
    "tests/harness/stores/store_writer.py": (2, "whether the store's engine runs in this process"),
    "tests/process/store/regions/test_fuzz.py": (1, "bytes that no client would send"),
}
# Harnesses below anything that users see: how processes start, and the death of a process that holds a journal.
BELOW = {
    "tests/harness/processes/class_archive.py",
    "tests/harness/processes/forked.py",
    "tests/harness/processes/zygote.py",
    "tests/harness/stores/journal_files.py",
}
PYTHONS_OWN = {"os._exit"}


def private_lines(tree: ast.AST) -> set[int]:
    """The lines that read or write a private attribute of something else than self or cls."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of, name = ast.unparse(node.value), node.attr
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            of, name = ast.unparse(node.args[0]), getattr(node.args[1], "value", "")
        else:
            continue
        private = isinstance(name, str) and name.startswith("_") and not name.startswith("__")
        if private and of not in ("self", "cls") and f"{of}.{name}" not in PYTHONS_OWN:
            found.add(node.lineno)
    return found


def test_private_lines_are_found() -> None:
    told = ast.parse("a._b\nself._b\na.b\na.__len__()\ngetattr(self.a, '_b')\nos._exit(0)\nself.a._b = 1\n")
    assert private_lines(told) == {1, 5, 7}


def test_tests_of_what_users_see_do_not_reach_inside() -> None:
    """At most 40 lines do, each with its reason; a unit test of a module may look into it."""
    folders = [PROJECT / "tests" / name for name in ("contract", "harness", "process", "spark")]
    counts = {
        str(path.relative_to(PROJECT)): len(private_lines(tree_of(path)))
        for folder in folders
        for path in sorted(folder.rglob("*.py"))
        if str(path.relative_to(PROJECT)) not in BELOW
    }
    assert {name: count for name, count in counts.items() if count} == {
        name: count for name, (count, _) in INSIDE.items()
    }
    assert all(reason for _, reason in INSIDE.values())
    assert sum(count for count, _ in INSIDE.values()) <= 40
