"""Crash points without a hook in the product: Python imports this module at its start if the folder is on PYTHONPATH.

Armed by the environment variable JMSQ_CRASH_DIR (see tests/harness/processes/crash.py), it wraps a handful of functions when
their modules are imported. At the nth hit of the planned point the process records the strike in `fired.json` and
kill -9s itself (target "worker"), or the driver's JVM and the JVM's Python parent (target "driver"), or stops itself
until the test sends SIGCONT (target "pause"). The plan's `orphan` decides what a process does whose driver it has just
killed:

    die         it kills itself too: nothing happens after the point
    continue    it continues until it notices, as in production: the write may still happen
    linger      it sleeps three seconds at the point, its session alive, while the next driver starts

JMSQ_TUNE sets constants of modules, as JSON: {"module": {"Class.CONSTANT": value}}; it needs no crash directory.

It also takes pyspark.zip off the path, which Spark puts in front of the installed PySpark. The files are the same, but
the zip has no cached bytecode, and every Python process that Spark starts would compile them: 0.6 s of CPU time each.

And it hides pandas from those processes, not from the application, and not from the operator of expiration, whose rows come as
pandas frames. The product uses pandas nowhere else, but pyarrow imports it at the first array that it makes, if it is installed:
another 0.4 s of CPU time each. PySpark's planners, sources, sinks and tasks run without it.

And it imports into PySpark's fork servers what the processes need that they fork for planners, sinks and tasks. PySpark's own
import nothing: each of those processes takes another second of CPU time. pyarrow and its allocator can be forked.
"""

from __future__ import annotations

import fcntl
import importlib.machinery
import json
import os
import signal
import sys
import time

DIRECTORY = os.environ.get("JMSQ_CRASH_DIR", "")
TUNE: dict = json.loads(os.environ.get("JMSQ_TUNE") or "{}")
LINGER_S = 3.0


def _in_task() -> bool:
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.TaskContext.get() is not None


def _message_file(writer) -> bool:
    return _in_task() and "_jmsq" not in str(writer._storage.uri)


def _append(operation: str, acknowledgements: bool = False):
    def planned(log, snapshot, given, *rest) -> bool:
        return given == operation and ("/_jmsq/" in str(log.storage.uri)) == acknowledgements

    return planned


def _moves_claims(members, changed, *_rest, **_named) -> bool:
    known = members.known
    return any(
        state.claims != known[m].state.claims or state.floor != known[m].state.floor for m, state in changed.items()
    )


def _meets(members, looked_at, *_rest, **_named) -> bool:
    return not members.known.keys() >= set(looked_at)


def _always(*_args, **_named) -> bool:
    return True


def _of_usage(log, *_rest) -> bool:
    return str(log.storage.uri).endswith("/_jmsq/usage")


FILES, LOG = "spark_jms.log.messages.data_files", "spark_jms.log.tables.delta_log"
MEMBERS = "spark_jms.claims.records.members"
# operation -> module, class, function, predicate of the calls that count
WHERE = {
    "file-write": (FILES, "FileWriter", "close", _message_file),
    "send-commit": (LOG, "DeltaLog", "append", _append("WRITE")),
    "claim-write": (MEMBERS, "Members", "commit", _moves_claims),
    "record-look": (MEMBERS, "Members", "_look", _meets),
    "purge": (LOG, "DeltaLog", "append", _append("PURGE")),
    "compaction": (LOG, "DeltaLog", "append", _append("OPTIMIZE")),
    "outbox": (LOG, "DeltaLog", "append", _append("WRITE", acknowledgements=True)),
    "history": (LOG, "DeltaLog", "append", _of_usage),
    "due-sink": ("spark_jms.claims.failures.due_expiration", "DueExpiration", "expire", _always),
    "task-read": ("spark_jms.spark.tasks", None, "read_partition", _always),
    "plan": ("spark_jms.spark.source", "JmsqStreamReader", "partitions", _always),
    "checkpoint": (
        "spark_jms.log.upkeep.housekeeping",
        None,
        "checkpoint",
        lambda log, *_, **__: log.versions_since_checkpoint() >= 50,
    ),
}


def _plan() -> dict | None:
    try:
        with open(f"{DIRECTORY}/plan.json") as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def _hit(point: str) -> None:
    plan = _plan()
    if plan is None or plan["point"] != point or os.path.exists(f"{DIRECTORY}/fired.json"):
        return
    with open(f"{DIRECTORY}/hits", "ab") as hits:
        fcntl.flock(hits, fcntl.LOCK_EX)
        hits.write(b".")
        hits.flush()
        if hits.tell() != plan["nth"]:
            return
        jvm = _driver() if plan["target"] == "driver" else 0
        with open(f"{DIRECTORY}/fired.writing", "w") as fired:
            json.dump({**plan, "pid": os.getpid(), "jvm": jvm, "at": time.time()}, fired)
        os.rename(f"{DIRECTORY}/fired.writing", f"{DIRECTORY}/fired.json")
    _strike(plan, jvm)


def _strike(plan: dict, jvm: int) -> None:
    if plan["target"] == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    if plan["target"] == "pause":
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    parent = int(os.environ["JMSQ_APP_PID"])
    for pid in (jvm, parent):
        os.kill(pid, signal.SIGKILL)
    if plan["orphan"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if plan["orphan"] == "linger":
        time.sleep(LINGER_S)


def _driver() -> int:
    """The JVM above this process."""
    pid = os.getppid()
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            name, rest = file.read().rsplit(")", 1)
        if name.endswith("(java"):
            return pid
        pid = int(rest.split()[1])
    raise RuntimeError("no JVM above this process")


def _wrapped(what: str, function, counts):
    def around(*args, **named):
        if not counts(*args, **named):
            return function(*args, **named)
        _hit(f"before-{what}")
        result = function(*args, **named)
        if result is not False:
            _hit(f"after-{what}")
        return result

    return around


def _wrap(module) -> None:
    for what, (name, owner, attribute, counts) in WHERE.items():
        if DIRECTORY and name == module.__name__:
            holder = getattr(module, owner) if owner else module
            setattr(holder, attribute, _wrapped(what, getattr(holder, attribute), counts))
    for path, value in TUNE.get(module.__name__, {}).items():
        holder = module
        for part in path.split(".")[:-1]:
            holder = getattr(holder, part)
        setattr(holder, path.split(".")[-1], value)


class _Loader:
    def __init__(self, loader) -> None:
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module) -> None:
        self.loader.exec_module(module)
        _wrap(module)


class _Finder:
    modules = frozenset([where[0] for where in WHERE.values()] + list(TUNE))

    def find_spec(self, name, path, target=None):
        if name not in self.modules:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _NoPandas:
    @staticmethod
    def find_spec(name, path, target=None) -> None:
        if name == "pandas" and "spark_jms.jobs.expiration" not in sys.modules:
            raise ModuleNotFoundError("Spark's Python processes have no pandas in tests", name=name)


def _of_spark(command: list[str]) -> bool:
    """A command line `python -m pyspark.…`: a planner, a source, or a daemon that forks sinks and tasks."""
    return "-m" in command and command[command.index("-m") + 1].startswith("pyspark.")


def _import_for_forks(worker: str) -> None:
    import gc
    import importlib

    for name in (worker, "pyarrow.compute", "pyspark_jmsq"):
        importlib.import_module(name)
    gc.freeze()  # or the first collection of a fork would copy the pages of all modules


sys.path[:] = [entry for entry in sys.path if not entry.endswith("pyspark.zip")]
if DIRECTORY or TUNE:
    sys.meta_path.insert(0, _Finder())
if _of_spark(sys.orig_argv):
    sys.meta_path.insert(0, _NoPandas)
if sys.orig_argv[-2:-1] == ["pyspark.daemon"]:
    _import_for_forks(sys.orig_argv[-1])
