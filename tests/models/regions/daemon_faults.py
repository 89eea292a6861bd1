"""Faults of daemons: they die, stand still, leave, and their clocks jump."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.protocol.messages import BreakOff, Shutdown
from tests.models.regions.cluster import SimCluster
from tests.models.regions.daemons import Fate, Moment, SimDaemon
from tests.models.regions.draw import Draw

PATIENCE_MS = (2_000.0, 6_000.0, 20_000.0, 60_000.0)  # after which an administrator breaks a safe shutdown off
LAST_PATIENCE_MS = 10_000.0


class DaemonFaults:
    """`may_lose`: the last copy of a region may die. `before_death`: called before a daemon is killed."""

    def __init__(self, cluster: SimCluster, draw: Draw, may_lose: bool, before_death: Callable[[], None]) -> None:
        self._cluster = cluster
        self._draw = draw
        self._may_lose = may_lose
        self._before_death = before_death

    def crash(self) -> None:
        daemon = self._draw.any_up()
        if daemon is not None:
            self._kill(daemon)

    def massacre(self) -> None:
        spared = self._draw.chance.choice(self._cluster.daemons)
        for daemon in self._cluster.daemons:
            if daemon is not spared and daemon.core is not None:
                self._draw.later(self._draw.chance.uniform(0, 20), partial(self._kill, daemon))

    def _kill(self, daemon: SimDaemon) -> None:
        if daemon.core is not None and (self._may_lose or not self._holds_a_last_copy(daemon)):
            self._before_death()
            self._cluster.crash(daemon)
            self._cluster.start_later(daemon, self._draw.chance.choice((50, 1000, 4000)))

    def die_at_a_moment(self) -> None:
        """Between a change of the directory and its answer, or before any of the next frames."""
        daemon = self._draw.any_up()
        if daemon is not None:
            moment = self._draw.chance.choice((Moment.SWAP, Moment.SEND))
            left = self._draw.chance.randint(1, 3 if moment is Moment.SWAP else 60)
            daemon.fate = Fate(moment, left, partial(self._kill, daemon))

    def _holds_a_last_copy(self, daemon: SimDaemon) -> bool:
        me, alive = daemon.running.me, self._cluster.directory.alive
        entries = (*self._cluster.directory.entries.values(), *self._cluster.directory_faults.pending)
        return any(
            me in entry.holders() and not any(h != me and h in alive for h in entry.holders()) for entry in entries
        )

    def pause(self) -> None:
        daemon = self._draw.any_up()
        if daemon is not None:
            core = daemon.running
            self._cluster.pause(daemon)
            self._draw.later_one_of((300, 1500, 2500, 6000), lambda: self._wake(daemon, core))

    def _wake(self, daemon: SimDaemon, core: DaemonCore) -> None:
        if daemon.core is core:
            self._cluster.wake(daemon)

    def stall(self) -> None:
        faults = self._cluster.directory_faults
        faults.stalling = 0.05
        self._draw.later(1_500, lambda: setattr(faults, "stalling", 0.0))

    def clock(self) -> None:
        """The time of day jumps; the clock that never goes back jumps ahead, or stands for a moment."""
        daemon = self._draw.chance.choice(self._cluster.daemons)
        match self._draw.chance.choice(("day", "jump", "stand")):
            case "day":
                daemon.wall_skew_us += self._draw.chance.choice((-3_600_000_000, 5_000_000, 86_400_000_000))
            case "jump":
                daemon.jump(self._draw.chance.choice((300.0, 1_500.0, 5_000.0, 60_000.0)))
            case "stand":
                daemon.stop_clock()
                self._draw.later_one_of((50, 200), daemon.continue_clock)

    def drain(self) -> None:
        daemon = self._draw.any_up(keep=2)
        if daemon is None:
            return
        entries = self._cluster.directory.entries.values()
        if any(daemon.running.me in entry.holders() and entry.opener for entry in entries):
            for connection in list(self._cluster.connections.values()):
                if connection.daemon is daemon:
                    self._cluster.disconnect(connection)
        self._cluster.ask_once(daemon, Shutdown(1, [daemon.index], False))
        patience_ms = PATIENCE_MS[
            (daemon.index + daemon.lives) % len(PATIENCE_MS)
        ]  # not drawn: seeds keep their course
        core = daemon.running
        self._draw.later(patience_ms, lambda: self._break_off(daemon, core))

    def _break_off(self, daemon: SimDaemon, core: DaemonCore) -> None:
        if daemon.core is core and core.draining:
            self._cluster.ask_once(daemon, BreakOff(2, [daemon.index]))

    def end(self) -> None:
        """Shutdowns that are under way have some time, and then whoever asked for them breaks them off."""
        self._draw.later(LAST_PATIENCE_MS, self._break_all_off)

    def _break_all_off(self) -> None:
        for daemon in self._cluster.daemons:
            if daemon.core is not None:
                self._break_off(daemon, daemon.core)
