"""A cluster in one thread: daemon cores with an in-memory directory, memory, network and clock.

`World` drives it from a seed, `StepCluster` step by step. Both pass events to the cores in the same way and carry out
the same actions; they differ in their `Timing` and in what they do to the cluster.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import partial

from spark_jms.settings.store import DaemonSettings
from spark_jms.store.regions.core.actions import Action, AskDirectory, Drop, Log, Stop, ToClient, ToPeer, Unlink
from spark_jms.store.regions.core.daemon import DaemonCore
from spark_jms.store.regions.protocol.messages import RegionMessage, Remove
from spark_jms.store.regions.protocol.region_entry import ChangeEntry, DirectoryRequest, Holder, RegionEntry, perform
from tests.models.regions.connections import ClientConnection, ClientEnd, Wire
from tests.models.regions.daemons import Moment, SimDaemon
from tests.models.regions.directory import Damage, DirectoryContents, DirectoryFaults, SimDirectory, newer, torn
from tests.models.regions.memory import SimMemory
from tests.models.regions.network import Network
from tests.models.regions.observer import REPORTS, Observer
from tests.models.regions.schedule import Schedule
from tests.models.regions.timing import Timing

ADMINISTRATOR_STAYS_MS = 5_000.0
SENDS = (ToPeer, ToClient)


class SimCluster:
    def __init__(
        self,
        daemons: int,
        limit_bytes: int,
        settings: DaemonSettings,
        *,
        timing: Timing | None = None,
        chance: random.Random | None = None,
        start_ms: float = 0.0,
    ) -> None:
        self.timing = timing or Timing()
        chance = chance or random.Random(0)
        self.schedule = Schedule(start_ms)
        self.settings = settings
        self._observers: dict[str, list[Observer]] = {report: [] for report in REPORTS}  # those that listen to it
        self.directory = DirectoryContents(self._changed, self._refused, lambda: int(self.now_ms / 1000))
        self.directory_faults = DirectoryFaults(
            chance, self.schedule.later, Damage(self.directory, torn), Damage(self.directory, newer)
        )
        self.daemons = [SimDaemon(index, limit_bytes, self.schedule, self._perform) for index in range(daemons)]
        self.network = Network(self.daemons, self.schedule, self.timing, chance, self._sent)
        self.connections: dict[int, ClientConnection] = {}
        self._half_open: dict[int, SimDaemon] = {}  # connections that only the daemon has
        self._numbers = itertools.count(1)

    @property
    def now_ms(self) -> float:
        return self.schedule.now_ms

    def until(self, condition: Callable[[], bool], limit_ms: float) -> bool:
        """Runs until the condition holds; False: it does not hold within the limit."""
        self.schedule.run_until(self.now_ms + limit_ms, condition)
        return condition()

    # ---- what it reports

    def observe(self, observer: Observer) -> None:
        for report in REPORTS:
            if getattr(type(observer), report) is not getattr(Observer, report):
                self._observers[report].append(observer)

    def note(self, text: str) -> None:
        for observer in self._observers["note"]:
            observer.note(text)

    def _changed(self, by: Holder, name: str, old: RegionEntry | None, new: RegionEntry | None, opened: bool) -> None:
        for observer in self._observers["changed"]:
            observer.changed(by, name, old, new, opened)

    def _refused(self, by: Holder, name: str, reason: str) -> None:
        for observer in self._observers["refused"]:
            observer.refused(by, name, reason)

    def _sent(self, source: int, target: int, message: RegionMessage) -> None:
        for observer in self._observers["sent"]:
            observer.sent(source, target, message)

    # ---- daemons

    def start(self, daemon: SimDaemon) -> None:
        daemon.begin_life(self.now_ms + self.timing.clock_offset_ms(), self.timing.clock_rate())
        me = Holder(daemon.index, f"life{daemon.lives}")
        daemon.memory = SimMemory(daemon.limit_bytes, lambda region_id: self.timing.memory_asks(region_id))
        daemon.directory = SimDirectory(self.directory, self.directory_faults, me)
        daemon.core = core = DaemonCore(
            daemon.index,
            me.incarnation,
            len(self.daemons),
            daemon.limit_bytes,
            daemon.memory,
            self.settings,
            daemon.clock_ms(),
            daemon.wall_us(),
        )
        self.directory.alive.add(me)
        self.note(f"daemon {daemon.index} starts, {me.incarnation}")
        self.schedule.later(self.timing.first_tick_ms(), lambda: self._tick(daemon, core))

    def _tick(self, daemon: SimDaemon, core: DaemonCore) -> None:
        if daemon.core is not core:
            return
        if not daemon.paused:
            self.network.dial(daemon)
            self._perform(daemon, core.tick(daemon.clock_ms(), daemon.wall_us()))
        self.schedule.later(self.timing.tick_ms(), partial(self._tick, daemon, core))

    def crash(self, daemon: SimDaemon) -> None:
        self.note(f"daemon {daemon.index} dies")
        self.directory.alive.discard(daemon.running.me)
        daemon.stop()
        self.network.died(daemon.index)
        self._half_open = {number: there for number, there in self._half_open.items() if there is not daemon}
        for connection in [c for c in self.connections.values() if c.daemon is daemon]:
            self.disconnect(connection)

    def pause(self, daemon: SimDaemon) -> None:
        daemon.paused, daemon.slept_ms = True, self.now_ms
        self.note(f"daemon {daemon.index} stands still")

    def wake(self, daemon: SimDaemon) -> None:
        if daemon.paused:
            self.note(f"daemon {daemon.index} wakes")
            daemon.wake()

    def living(self, holder: Holder) -> DaemonCore | None:
        daemon = self.daemons[holder.daemon]
        return daemon.core if daemon.is_life(holder) else None

    def _perform(self, daemon: SimDaemon, actions: list[Action]) -> None:
        for action in actions:
            if daemon.fate is not None and isinstance(action, SENDS) and self._dies(daemon, Moment.SEND):
                return
            match action:
                case ToPeer():  # without patterns for its parts, which take as long as the rest: three in four are these
                    self.network.send(daemon.index, action.daemon, action.message)
                case ToClient():
                    connection = self.connections.get(action.client)
                    if connection is not None and connection.daemon is daemon:
                        self._answer(connection, action.message)
                case AskDirectory():
                    self._ask_directory(daemon, action.number, action.request)
                case Drop(number):
                    if number in self.connections:
                        self.disconnect(self.connections[number])
                    elif self._half_open.pop(number, None) is daemon:
                        self.schedule.later(0.0, partial(self._client_gone, daemon, daemon.running, number))
                case Unlink(target):
                    self.network.cut(daemon.index, target)
                case Log(_, text):
                    for observer in self._observers["logged"]:
                        observer.logged(daemon.index, text)
                case Stop():
                    self._stop(daemon)
                    return
        for observer in self._observers["handled"]:
            observer.handled(daemon)

    def _ask_directory(self, daemon: SimDaemon, number: int, request: DirectoryRequest) -> None:
        """Request and answer take their time. A request on its way survives its daemon."""
        core, directory, faults = daemon.running, daemon.directory, self.directory_faults
        assert directory is not None
        pending = [request.new] if isinstance(request, ChangeEntry) and request.new is not None else []
        faults.pending += pending

        def arrive() -> None:
            for entry in pending:
                faults.pending.remove(entry)
            answer = perform(directory, request)
            if answer is True and pending and daemon.core is core and self._dies(daemon, Moment.SWAP):
                return
            self.schedule.later(way_ms(), partial(daemon.feed, core, core.directory_answered, number, answer))

        def way_ms() -> float:
            hangs_ms = faults.hangs_until_ms - self.now_ms
            return max(hangs_ms, 0.0) + self.timing.directory_delay_ms() + faults.extra_ms()

        self.schedule.later(way_ms(), arrive)
        if faults.stalls() and not daemon.paused:
            self.pause(daemon)
            self.schedule.later(faults.chance.choice((300, 1500, 3000, 6000)), lambda: self._continue(daemon, core))

    def _dies(self, daemon: SimDaemon, moment: Moment) -> bool:
        fate = daemon.fate
        if fate is None or fate.moment is not moment:
            return False
        fate.left -= 1
        if fate.left > 0:
            return False
        daemon.fate = None
        self.note(f"daemon {daemon.index} dies at a moment: {moment.value}")
        fate.die()
        return daemon.core is None

    def _continue(self, daemon: SimDaemon, core: DaemonCore) -> None:
        if daemon.core is core:
            self.wake(daemon)

    def _stop(self, daemon: SimDaemon) -> None:
        for observer in self._observers["stopping"]:
            observer.stopping(daemon)
        self.crash(daemon)
        restart_ms = self.timing.restart_ms()
        if restart_ms is not None:
            self.start_later(daemon, restart_ms)

    def start_later(self, daemon: SimDaemon, delay_ms: float) -> None:
        self.schedule.later(delay_ms, lambda: self.start(daemon) if not daemon.core else None)

    # ---- clients

    def ask_once(self, daemon: SimDaemon, message: RegionMessage) -> None:
        """From an administrator who does not wait for the answer, but stays connected for a while."""
        self._note_removal(message)
        core, number = daemon.running, next(self._numbers)
        daemon.feed(core, core.client_came, number, f"admin{number}")
        daemon.feed(core, core.from_client, number, message)
        self.schedule.later(ADMINISTRATOR_STAYS_MS, lambda: self._client_gone(daemon, core, number))

    def connect(self, daemon: SimDaemon, end: ClientEnd) -> ClientConnection:
        core, number = daemon.running, next(self._numbers)
        there = Wire(
            partial(daemon.feed, core, core.from_client, number),
            lambda: self.disconnect(connection),
        )
        connection = ClientConnection(
            number, daemon, end, there, Wire(end.receive, lambda: self.disconnect(connection))
        )
        self.connections[number] = connection
        daemon.feed(core, core.client_came, number, end.name)
        return connection

    def ask(self, connection: ClientConnection, message: RegionMessage) -> None:
        """From the client to its daemon; nothing happens once the connection was cut."""
        if connection.number in self.connections:
            self._note_removal(message)
            for observer in self._observers["asked"]:
                observer.asked(connection, message)
            self._transmit(connection.there, message)

    def _note_removal(self, message: RegionMessage) -> None:
        if isinstance(message, Remove):
            self.directory.unwanted.add(message.name)

    def _answer(self, connection: ClientConnection, message: RegionMessage) -> None:
        for observer in self._observers["answered"]:
            observer.answered(connection, message)
        connection.end.answering(message)
        self._transmit(connection.back, message)

    def _transmit(self, wire: Wire, message: RegionMessage) -> None:
        frame, now_ms = wire.pack(message), self.schedule.now_ms
        wire.last_ms = max(wire.last_ms, now_ms + self.timing.client_delay_ms())
        self.schedule.later(wire.last_ms - now_ms, partial(wire.arrive, frame))

    def disconnect(self, connection: ClientConnection) -> None:
        if self.connections.pop(connection.number, None) is None:
            return
        connection.back.open = False
        connection.there.open = self.timing.delivers_after_cut()
        daemon, core = connection.daemon, connection.daemon.core
        if core is not None:
            delay_ms = max(connection.there.last_ms - self.now_ms, 0.0) + self.timing.peer_delay_ms()
            self.schedule.later(delay_ms, lambda: self._client_gone(daemon, core, connection.number))
        connection.end.disconnected()

    def forget(self, connection: ClientConnection) -> None:
        """The client's machine is gone without a word: its daemon keeps the connection until it notices the silence."""
        del self.connections[connection.number]
        connection.back.open = connection.there.open = False
        self._half_open[connection.number] = connection.daemon
        self.note(f"{connection.end.name} falls silent")
        connection.end.disconnected()

    def lose(self, connection: ClientConnection) -> None:
        """The daemon's side closes, and the client does not hear of it: it has to notice the silence."""
        del self.connections[connection.number]
        connection.back.open = connection.there.open = False
        self.note(f"{connection.end.name} hears nothing any more")
        daemon = connection.daemon
        self.schedule.later(0.0, partial(self._client_gone, daemon, daemon.running, connection.number))

    def _client_gone(self, daemon: SimDaemon, core: DaemonCore, number: int) -> None:
        daemon.feed(core, core.client_gone, number)
