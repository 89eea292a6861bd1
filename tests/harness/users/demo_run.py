"""A run of the demo in processes of its own, and the account that its flights alone determine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from spark_jms.demo import flights
from tests.harness.processes.crash import PLUGIN
from tests.harness.project import PROJECT

_WATCHED = """
import sys
from spark_jms.demo import account
from spark_jms.demo.__main__ import main
account.EVERY_S = {every_s}
sys.exit(main())
"""

_LOST = """
import os, signal, sys
from spark_jms.demo import flights
from spark_jms.demo.__main__ import main

def load(rows):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        signal.pause()
    except KeyboardInterrupt:
        {then}

flights.load = load
sys.exit(main())
"""


def demo(
    *arguments: str, cwd: Path, watch_every_s: float | None = None, interrupted: str | None = None
) -> subprocess.Popen[str]:
    """The demo in a process session of its own, as in a terminal, with a TMPDIR by which `processes_in` finds children.
    `interrupted`: Ctrl-C comes while a library reads, which makes this statement of it."""
    program = ["-m", "spark_jms.demo"]
    if watch_every_s is not None:
        program = ["-c", _WATCHED.format(every_s=watch_every_s)]
    elif interrupted is not None:
        program = ["-c", _LOST.format(then=interrupted)]
    return subprocess.Popen(
        [sys.executable, *program, "--plain", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(cwd), "PYTHONPATH": f"{PLUGIN}:{PROJECT}"},
    )


def processes_in(directory: Path) -> list[str]:
    """Command lines of the processes of a demo that was started there: all of them inherit its TMPDIR."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"TMPDIR={directory}".encode() in environment.split(b"\0"):
            found.append(command)
    return found


def expected_account(rows: int) -> dict[str, Any]:
    """What the account of every faultless run of so many flights says, wherever Spark runs."""
    sent = flights.load(rows)

    def delayed(minutes: int) -> int:
        found = pc.sum(pc.greater(sent["dep_delay"], minutes)).as_py()
        assert isinstance(found, int)
        return found

    aircraft = len(pc.drop_null(pc.unique(sent["tailnum"])))
    return {
        "problems": [],
        "sent": rows,
        "received": rows,
        **dict.fromkeys(("lost", "duplicated", "altered", "redelivered", "in_two_hands"), 0),
        "most_deliveries": 1,
        "aircraft": aircraft,
        "in_order": aircraft,
        "without_unit": sent["tailnum"].null_count,
        "members": 4,
        "subscriptions": {"ops": [delayed(60)] * 2, "statistics": [delayed(15)] * 2},
        "marks": ["start", "kill", "restart", "empty"],
        "left": 0,
    }


def kept_account(work: Path) -> dict[str, Any]:
    """The same of the run that worked in this directory. Checks what differs from run to run."""
    account = json.loads((work / "account.json").read_text())
    queue = account["queue"]
    assert min(queue["received"].values()) > 0
    assert sum(sum(by.values()) for by in queue["by_member"].values()) == queue["sent"]
    assert max(backlog for _, _, backlog in account["depth"]) > queue["sent"] // 3
    same = ("sent", "lost", "duplicated", "altered", "redelivered", "in_two_hands", "most_deliveries", "aircraft")
    return {
        "problems": account["problems"],
        **{name: queue[name] for name in (*same, "in_order", "without_unit")},
        "received": sum(queue["received"].values()),
        "members": len(queue["by_member"]),
        "subscriptions": {s["name"]: [s["expected"], s["received"]] for s in account["subscriptions"]},
        "marks": [mark for _, mark in account["marks"]],
        "left": account["depth"][-1][2],
    }
