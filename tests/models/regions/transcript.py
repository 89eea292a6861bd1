"""Transcripts: files of commands and the trace that they cause, after the datadriven tests of etcd's raft.

    # prose
    command
    command
    ----
    trace
    (an empty line ends the block)

`replay` returns the file with the trace as it is now; a test compares the two. The commands stand in `Transcript`, each
with its arguments in its docstring.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable

from spark_jms.store.regions.protocol.messages import Close, Open, ReadRegion, Regions, Remove, Shutdown, WriteRegion
from tests.models.regions.invariants import Invariants
from tests.models.regions.rendering import TraceLines, contents, render, render_entry
from tests.models.regions.stepwise import SIZE, StepClient, StepCluster

ANSWER_MS = 3_000.0
UNTIL_MS = 20_000.0
SEPARATOR = "----"


def replay(text: str) -> str:
    transcript = Transcript()
    out: list[str] = []
    commands: list[str] = []
    in_trace = False
    for line in text.splitlines():
        if in_trace:
            in_trace = bool(line)
        elif line == SEPARATOR:
            lines = [traced for command in commands for traced in transcript.run(command)]
            out += [line, *(lines or ["(nothing)"]), ""]
            commands, in_trace = [], True
        else:
            commands += [line] if line and not line.startswith("#") else []
            out.append(line)
    return "\n".join(out).rstrip() + "\n"


class Transcript:
    """Runs one command after the other on a cluster, and returns what each of them caused."""

    def __init__(self) -> None:
        self._cluster = StepCluster(0)
        self._trace = TraceLines(lambda: 0.0, ())
        self._clients: dict[str, StepClient] = {}
        self._opens: dict[tuple[str, str], int] = {}  # the last request of a client to open a region
        self._commands: dict[str, Callable[..., None]] = {
            "cluster": self._start_cluster,
            "connect": self._connect,
            "open": self._open,
            "close": self._close,
            "write": self._write,
            "erase": self._erase,
            "read": self._read,
            "regions": self._regions,
            "remove": self._remove,
            "shutdown": self._shutdown,
            "leave": lambda name: self._clients[name].leave(),
            "silence": self._silence,
            "kill": lambda index: self._cluster.kill(int(index)),
            "start": lambda index: self._cluster.start(int(index)),
            "pause": lambda index: self._cluster.freeze(int(index)),
            "wake": lambda index: self._cluster.wake(int(index)),
            "separate": lambda a, b: self._cluster.separate(int(a), int(b)),
            "join": lambda a, b: self._cluster.join(int(a), int(b)),
            "directory": self._directory,
            "tear": lambda name: self._cluster.sim.directory_faults.torn.add(name),
            "mend": lambda name: self._cluster.sim.directory_faults.torn.discard(name),
            "hold": self._hold,
            "release": self._release,
            "run": lambda ms: self._cluster.run(float(ms)),
            "until": self._until,
            "entries": self._entries,
            "copies": self._copies,
        }

    def run(self, command: str) -> list[str]:
        word, *rest = shlex.split(command)
        options = dict(item.split("=", 1) for item in rest if "=" in item)
        self._commands[word](*(item for item in rest if "=" not in item), **options)
        self._cluster.run(0)
        return self._trace.take()

    # ---- the cluster

    def _start_cluster(self, daemons: str, limit: str = "100", **settings: str) -> None:
        """`cluster 3 [limit=REGIONS] [SETTING=VALUE]`: the limit is in regions of 64 KiB."""
        values = {key: int(value) if value.isdigit() else value for key, value in settings.items()}
        self._cluster = StepCluster(int(daemons), int(limit) * SIZE, **values)
        sim = self._cluster.sim
        self._trace = TraceLines(lambda: sim.now_ms, sim.directory.alive)
        self._cluster.sim.observe(self._trace)
        self._cluster.sim.observe(Invariants(self._cluster.sim, may_lose=True, may_force=True))

    def _directory(self, index: str, state: str) -> None:
        """`directory 0 away|back`, `directory 0 mute|answering` (changes happen, and the daemon gets an error),
        `directory 0 empty|back` (its path leads to an empty mount point)"""
        directory = self._cluster.directory(int(index))
        directory.disk.available, directory.answering = state != "away", state != "mute"
        directory.disk.empty = state == "empty"

    def _hold(self, kind: str, index: str) -> None:
        """`hold Ack 1`: messages of this type from daemon 1 stay on their way until `release`. `all`: every type."""
        self._cluster.sim.network.hold(
            lambda source, message: source == int(index) and kind in ("all", type(message).__name__)
        )

    def _release(self) -> None:
        for message in self._cluster.sim.network.release():
            self._trace.add(f"arrives late: {render(message)}")

    def _until(self, *words: str) -> None:
        """`until s.000 on 1 2`, `until daemon 0 stopped`, `until a answered`; an error after 20 s"""
        match words:
            case (name, "on", *indexes):
                wanted = [int(index) for index in indexes]
                reached = self._cluster.until(lambda: self._holders(name) == wanted, UNTIL_MS)
            case ("daemon", index, "stopped"):
                reached = self._cluster.until(lambda: self._cluster.cores[int(index)] is None, UNTIL_MS)
            case (name, "answered"):
                client = self._clients[name]
                reached = self._cluster.until(lambda: client.requests in client.answers, UNTIL_MS)
            case _:
                raise ValueError(f"until {' '.join(words)}: no such condition")
        assert reached, f"until {' '.join(words)}: not reached within {UNTIL_MS:.0f} ms"

    def _holders(self, name: str) -> list[int]:
        entry = self._cluster.entries.get(name)
        return [holder.daemon for holder in entry.holders()] if entry is not None else []

    def _entries(self) -> None:
        """What the directory contains."""
        for name, entry in sorted(self._cluster.entries.items()):
            self._trace.add(f"{name}: {render_entry(entry)}")

    def _copies(self) -> None:
        """What the daemons hold in memory."""
        for index, core in enumerate(self._cluster.cores):
            held = (
                [f"{name} ({contents(bytes(copy.memory))})" for name, copy in sorted(core.copies.items())]
                if core
                else []
            )
            self._trace.add(f"daemon {index}: {', '.join(held) or ('no copy' if core else 'down')}")

    # ---- clients

    def _connect(self, name: str, index: str) -> None:
        """`connect a 0`: client a connects to daemon 0, again if it was there before."""
        self._clients[name] = self._cluster.client(int(index), name)

    def _silence(self, name: str) -> None:
        """The client sends no more signs of life; its connection stays."""
        self._clients[name].silent = True

    def _open(self, name: str, region: str, kind: str = "", wait: str = str(ANSWER_MS)) -> None:
        """`open a s.000 [new] [wait=MS]`"""
        size = SIZE if kind == "new" else 0
        self._opens[(name, region)] = self._clients[name].requests + 1
        self._clients[name].ask(lambda n: Open(n, region, size), float(wait))

    def _epoch(self, name: str, region: str, epoch: str) -> int:
        opened = self._clients[name].answer(self._opens.get((name, region), 0))
        return int(epoch) if epoch else int(opened[0]) if isinstance(opened, list) else 0

    def _close(self, name: str, region: str) -> None:
        self._clients[name].ask(lambda n: Close(n, region))

    def _write(self, name: str, region: str, text: str, offset: str = "0", epoch: str = "", **options: str) -> None:
        """`write a s.000 "text" [OFFSET] [epoch=N] [wait=MS]`: with the epoch of its last open unless another is given"""
        self._send_write(name, region, text.encode(), int(offset), self._epoch(name, region, epoch), **options)

    def _erase(self, name: str, region: str, length: str, offset: str = "0", **options: str) -> None:
        """`erase a s.000 LENGTH [OFFSET] [wait=MS]`: writes zeros"""
        self._send_write(name, region, bytes(int(length)), int(offset), self._epoch(name, region, ""), **options)

    def _send_write(
        self, name: str, region: str, data: bytes, offset: int, epoch: int, wait: str = str(ANSWER_MS)
    ) -> None:
        self._clients[name].ask(lambda n: WriteRegion(n, region, epoch, [(offset, data)]), float(wait))

    def _read(self, name: str, region: str, length: str, offset: str = "0", epoch: str = "") -> None:
        """`read a s.000 LENGTH [OFFSET] [epoch=N]`"""
        number = self._epoch(name, region, epoch)
        self._clients[name].ask(lambda n: ReadRegion(n, region, number, int(offset), int(length)))

    def _regions(self, name: str, prefix: str = "") -> None:
        """`regions a [PREFIX]`: the status of the regions, as its daemon sees it"""
        self._clients[name].ask(lambda n: Regions(n, prefix))

    def _remove(self, name: str, region: str, force: str = "", wait: str = "8000") -> None:
        """`remove a s.000 [force]`"""
        self._clients[name].ask(lambda n: Remove(n, region, force == "force"), float(wait))

    def _shutdown(self, name: str, *words: str) -> None:
        """`shutdown a 0 1 [force]`"""
        indexes = [int(word) for word in words if word != "force"]
        self._clients[name].ask(lambda n: Shutdown(n, indexes, "force" in words))
