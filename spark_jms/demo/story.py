"""The demo, step by step, and its output: stages, bars and the queue's depth. Read `Story.run` first."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

import spark_jms
from spark_jms.demo import flights as demo_flights
from spark_jms.demo import queries
from spark_jms.demo.account import (
    DemoResult,
    Speed,
    SubscriptionAccount,
    Watch,
    queue_account,
    row_commits,
    subscription_account,
)
from spark_jms.demo.flights import DemoError
from spark_jms.demo.interrupts import Interrupts
from spark_jms.demo.processes import READY_TIMEOUT_S, QueryReceiver, ReceiverProcess
from spark_jms.log.destinations.domain import Domain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

MEMBERS = 4
MODULE = {
    "destinations": {
        "flights": {"kind": "distributed-queue", "members": MEMBERS, "inDoubtTimeout": "5 minutes"},
        "delays": {"kind": "topic"},
    }
}
DELAYED = "dep_delay > 15"
SUBSCRIPTIONS = queries.SUBSCRIPTIONS
KILL_AT = 0.2  # of all messages received
BATCHES = 10  # micro-batches that one receiver alone would need …
LEAST_BATCH = 500  # … but not smaller ones
STUCK_AFTER_S = 120.0
_TICK_S = 0.2
PLAIN_EVERY_S = 5.0
PLAIN_UNCHANGED_EVERY_S = 30.0
_BLOCKS = " ▁▂▃▄▅▆▇█"


class Stage:
    """A stage that begins now."""

    def __init__(self) -> None:
        self._started_s, self._began_ms = time.monotonic(), int(time.time() * 1000)

    def speed(self, name: str, rows: int, *tables: Path) -> Speed:
        """Until now, by the commits of the tables that it writes."""
        commits = [commit for table in tables for commit in row_commits(table) if commit.commit_ms >= self._began_ms]
        batches = [((commit.commit_ms - self._began_ms) / 1000, commit.rows) for commit in commits]
        return Speed.of(name, rows, time.monotonic() - self._started_s, batches)


class Story:
    """One run in the directory `work`, on the Spark of `master`. `close` leaves no process behind, at whatever step `run`
    was."""

    def __init__(self, work: Path, rows: int | None, screen: Screen, master: str, interrupts: Interrupts) -> None:
        self.work, self.screen, self.master, self._interrupts = work, screen, master, interrupts
        self.root = work / "domain"
        self.total = rows or demo_flights.ROWS
        self.files = demo_flights.feed_files(self.total)
        batch = max(self.total // BATCHES, LEAST_BATCH)
        self.a, self.b = ReceiverProcess("a", work, batch, master), QueryReceiver("b", work, batch)
        self.receivers = (self.a, self.b)
        self.speeds: list[Speed] = []
        self.problems: list[str] = []
        self.rest = 0  # flights of the second half
        self.application_s = self.start_up_s = 0.0
        self._flights: pa.Table | None = None
        self._shared = Stage()
        self._watch: Watch | None = None
        self._spark: SparkSession | None = None

    def run(self) -> DemoResult:
        self.prepare()
        self.send_first_half()
        self.ask_the_backlog()
        subscriptions = self.publish()
        in_doubt, taken_over = self.receive_and_kill()
        self.drain()
        return self.account(subscriptions, in_doubt, taken_over)

    # -- the steps ------------------------------------------------------------------------------------------------
    def prepare(self) -> None:
        self.screen.stage(
            "Destinations",
            f"{self.total:,} flights become messages. `jmsq apply` creates a queue `flights` of {MEMBERS} members, which\n"
            "   receivers share among themselves, and a topic `delays`. Each is a Delta table. No broker is started,\n"
            "   but two Spark applications: this one sends, and receives as `b`; the other receives as `a`.",
        )
        for change in spark_jms.apply(self.root, MODULE):
            self.screen.say(f"{change.destination}: {change.what} ({change.detail})")
        self._watch = Watch(self.root, "flights")
        started = time.monotonic()
        self.a.start()
        self._flights = demo_flights.load(self.total)
        self._interrupts.check()
        self._spark = queries.session("spark-jms demo", self.work / "warehouse" / "demo", self.master)
        self._interrupts.take()
        self._interrupts.check()
        self.application_s = time.monotonic() - started
        self.b.prepare(self.spark)

    def send_first_half(self) -> None:
        self.screen.stage(
            "Send the first half of the year, before any receiver runs",
            'A streaming query reads files as they arrive and writes messages: format("jmsq"). Each micro-batch is one\n'
            "   commit. JMSXGroupID = tail number: the flights of an aircraft keep their order.",
        )
        rows = demo_flights.write_feed(self.flights, self.work / "feed", 0, self.files // 2, self.files)
        self._timed("send, no receiver", rows, "flights")

    def ask_the_backlog(self) -> None:
        self.screen.stage("Ask the backlog", "The backlog is a table. Browsing it by SQL consumes nothing.")
        found = queries.by_spark(self.spark, self.root)
        try:
            found += queries.by_delta_readers(self.root)
        except ModuleNotFoundError as error:
            self.screen.say(f"(no {error.name}: pip install {error.name} to see any Delta reader do the same)")
        for answer in found:
            self.screen.table(answer.question, answer.columns, answer.rows)
        by_carrier = [answer.rows for answer in found if "which carriers wait" in answer.question.lower()]
        if any(rows != by_carrier[0] for rows in by_carrier):
            self.problems.append("Spark and DuckDB do not agree about the backlog")

    def publish(self) -> list[SubscriptionAccount]:
        self.screen.stage(
            "A topic with two durable subscriptions",
            f"`ops` and `statistics` subscribe and go away; then every flight of the year with {DELAYED} is published.\n"
            "   A subscription is a named position in the table: both find what was sent meanwhile, `ops` only what its\n"
            f'   selector "{SUBSCRIPTIONS["ops"]}" lets through. The application of `a` receives as `statistics`, this one as `ops`.',
        )
        with spark_jms.connect(self.root, housekeeping=False) as context:
            for name, selector in SUBSCRIPTIONS.items():
                context.consumer("delays", subscription=name, selector=selector).close()
        self.rest = demo_flights.write_feed(self.flights, self.work / "feed", self.files // 2, self.files, self.files)
        expected = {"ops": _where(self.flights, 60), "statistics": _where(self.flights, 15)}
        published = len(expected["statistics"])
        self._timed("publish to the topic", published, "delays", DELAYED, max(self.files // 3, 1))
        self.a.wait_until("ready", READY_TIMEOUT_S, self.tick)
        stage = Stage()
        self.a.receive_subscription("statistics")
        self._await(queries.receive_subscription(self.spark, self.work, "ops"))
        received = self.work / "received"
        self.speeds.append(stage.speed("receive as ops", len(expected["ops"]), received / "ops"))
        self.a.wait_until("statistics", READY_TIMEOUT_S, self.tick)
        self.speeds.append(stage.speed("receive as statistics", published, received / "statistics"))
        out = []
        for name, selector in SUBSCRIPTIONS.items():
            out.append(subscription_account(name, selector, expected[name], self.work / "received" / name))
            self.screen.say(f"{name}: {out[-1].received:,} messages")
        return out

    def receive_and_kill(self) -> tuple[int, int]:
        """(messages `a` had claimed when it was killed, messages b received until a was back)."""
        a, b = self.a.received, self.b.received
        self.screen.stage(
            "Two queries share the queue, the second half arrives, and one is killed",
            "`a` and `b` share the members: a new receiver gets some when a micro-batch ends. Each writes its own Delta\n"
            "   table. When a fifth has arrived, the application of `a` gets kill -9 in the middle of a micro-batch.",
        )
        self.watch.mark("start")
        self._shared = Stage()
        self.a.go()
        self.b.go(self.spark)
        sending, query = Stage(), self._send("flights")
        self._until(lambda: a.rows + b.rows >= KILL_AT * self.total and self._may_be_killed(), "both receive")
        self.a.kill_9()
        self.watch.mark("kill")
        killed_s, b_before = self.watch.second, b.rows
        self.a.start()
        in_hand = [claim for claim in self.watch.look().claims if claim.consumer == a.consumer]
        in_doubt = sum(claim.picks.count for claim in in_hand)
        self.screen.say(
            f"kill -9: `a` is gone with {in_doubt:,} messages in hand (members {_list(in_hand)}). They are kept for it,\n"
            "   and so are later flights of the same aircraft, for their order's sake; all the rest is free at once.\n"
            "   Its application starts again, with its checkpoint."
        )
        self.a.wait_until("ready", READY_TIMEOUT_S, self.tick)
        self.start_up_s = self.watch.second - killed_s
        members = len(self._seen_with(b.consumer, killed_s))
        taken_over, batches = b.rows - b_before, len(a.batches)
        self.screen.say(
            f"Its application takes {self.start_up_s:.0f} s to start. Meanwhile `b` receives {taken_over:,} messages,\n"
            f"   of {members} of the {MEMBERS} members."
        )
        self.a.go()
        self.watch.mark("restart")
        self._until(lambda: len(a.batches) > batches or self._empty(), "a has finished what it had in hand")
        away_s = self.watch.second - killed_s
        self.screen.say(f"`a` has finished that micro-batch, {away_s:.0f} s after the kill.")
        self._await(query)
        self.speeds.append(sending.speed("send, two receive", self.rest, self.root / "flights"))
        return in_doubt, taken_over

    def drain(self) -> None:
        self.screen.stage("Until the queue is empty", "Both receivers continue until every message is acknowledged.")
        self._until(self._empty, "the queue is empty")
        self.watch.mark("empty")
        self.watch.end()
        tables = [self.work / "received" / receiver.name for receiver in self.receivers]
        self.speeds.append(self._shared.speed("receive, kill and restart within", self.total, *tables))
        for receiver in self.receivers:
            receiver.stop()
        for receiver in self.receivers:
            done = receiver.received
            stage, seconds = f"receiver {receiver.name}, in batches it reported", sum(done.batch_ms) / 1000
            self.speeds.append(Speed.of(stage, done.rows, seconds, done.pace))

    def account(self, subscriptions: list[SubscriptionAccount], in_doubt: int, taken_over: int) -> DemoResult:
        self.screen.stage("The account", "Computed from the two output tables and the flights that were sent.")
        snapshot = Domain(str(self.root)).log("flights").refresh()
        last = {member: snapshot.last_sequence(member) for member in range(MEMBERS)}
        tables = {receiver.name: self.work / "received" / receiver.name for receiver in self.receivers}
        queue = queue_account(self.flights, tables, last, self.watch.samples)
        problems = self.problems + queue.problems + [p for s in subscriptions for p in s.problems]
        if queue.sent != self.total:
            problems.append(f"{queue.sent:,} messages were committed, but there are {self.total:,} flights")
        return DemoResult(
            queue,
            subscriptions,
            self.speeds,
            self.watch.samples,
            self.watch.marks,
            in_doubt,
            taken_over,
            self.application_s,
            self.start_up_s,
            problems,
        )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self.a.clean_up()
        if self._spark is not None:
            self._spark.stop()

    # -- waiting --------------------------------------------------------------------------------------------------
    @property
    def flights(self) -> pa.Table:
        assert self._flights is not None
        return self._flights

    @property
    def spark(self) -> SparkSession:
        assert self._spark is not None
        return self._spark

    @property
    def watch(self) -> Watch:
        assert self._watch is not None
        return self._watch

    def tick(self) -> None:
        """Check that every receiver is alive, and show its progress."""
        self._interrupts.check()
        self.watch.check()
        for receiver in self.receivers:
            receiver.check()
        last = self.watch.last
        self.screen.bar("sent", last.sent, self.total)
        for receiver in self.receivers:
            done = receiver.received
            note = f"{len(done.batches)} batches, the last in {done.batch_ms[-1] / 1000:.1f} s" if done.batches else ""
            self.screen.bar(f"received by {receiver.name}", done.rows, self.total, note)
        self.screen.depth([sample.backlog for sample in self.watch.samples], last.backlog)

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        """Raises DemoError if nothing has moved for long."""
        moved_s, state = time.monotonic(), (-1, -1, -1)
        while not condition():
            self.tick()
            now = (self.watch.last.sent, self.watch.last.backlog, sum(r.received.rows for r in self.receivers))
            if now != state:
                moved_s, state = time.monotonic(), now
            elif time.monotonic() - moved_s > STUCK_AFTER_S:
                raise DemoError(
                    f"nothing moved for {STUCK_AFTER_S:.0f} s while waiting until {what}: {self.watch.last.backlog:,} "
                    "messages wait"
                )
            time.sleep(_TICK_S)

    def _await(self, query: StreamingQuery) -> None:
        while not query.awaitTermination(1):
            self.tick()
        self.tick()

    def _timed(self, name: str, rows: int, destination: str, where: str = "true", files_per_trigger: int = 1) -> None:
        stage = Stage()
        self._await(self._send(destination, where, files_per_trigger))
        self.speeds.append(stage.speed(name, rows, self.root / destination))

    def _send(self, destination: str, where: str = "true", files_per_trigger: int = 1) -> StreamingQuery:
        checkpoint = self.work / "checkpoints" / f"send-{destination}"
        return queries.send_feed(
            self.spark, self.work / "feed", self.root, destination, checkpoint, where, files_per_trigger
        )

    def _seen_with(self, consumer: str, since_s: float) -> set[int]:
        """Members on which the consumer has held claims since then."""
        return {
            member for sample in self.watch.samples if sample.second > since_s for member in sample.members_of(consumer)
        }

    def _empty(self) -> bool:
        now = self.watch.look()
        return now.sent == self.total and now.backlog == 0

    def _may_be_killed(self) -> bool:
        """`a` is in the middle of a micro-batch, beside `b`; or no messages are left for one."""
        now = self.watch.look()
        in_hand = len(now.members_of(self.a.received.consumer))
        return (0 < in_hand <= MEMBERS // 2 and self.b.received.rows > 0) or now.backlog == 0


def _where(table: pa.Table, minutes: int) -> pa.Table:
    return table.filter(pc.fill_null(pc.greater(table["dep_delay"], minutes), False))


def _list(claims: list) -> str:  # type: ignore[type-arg]
    return ", ".join(str(member) for member in sorted({claim.member for claim in claims})) or "none"


# -- output ------------------------------------------------------------------------------------------------------------


def sparkline(values: Sequence[float], width: int = 60) -> str:
    """The values as a row of blocks, each the maximum of its slice, so that peaks stay visible."""
    if not values:
        return ""
    top, size = max(*values, 1), min(width, len(values))
    slices = [values[len(values) * i // size : len(values) * (i + 1) // size] for i in range(size)]
    return "".join(_BLOCKS[-(-max(part) * 8 // top).__int__()] for part in slices)


class Screen:
    """The demo's output: with rich on a terminal, as plain lines elsewhere. A context manager. Thread-safe."""

    def __init__(self, plain: bool = False) -> None:
        self.console = Console(highlight=False)
        if not self.console.is_terminal:
            self.console.width = 120
        self.plain = plain or not self.console.is_terminal
        self._progress = Progress(
            TextColumn("  {task.description:<22}"),
            BarColumn(30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._footer = Text("")
        self._live: Live | None = None
        self._started_s = self._said_s = time.monotonic()
        self._said = ""
        self._stage = 0

    def __enter__(self) -> Screen:
        if not self.plain:
            self._live = Live(Group(self._progress, self._footer), console=self.console, refresh_per_second=5)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()

    def settle(self) -> None:
        """Stop moving: later output appears below the final state of the bars."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def stage(self, title: str, explanation: str) -> None:
        self._stage += 1
        elapsed = time.monotonic() - self._started_s
        self.console.print(f"\n[bold]{self._stage}. {title}[/bold]  [dim]({elapsed:.0f} s)[/dim]")
        self.console.print(f"   {explanation}", style="dim" if not self.plain else None, soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(f"   {text}", soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        made = Table(box=None, padding=(0, 2))
        for column in columns:
            right = all(isinstance(row[columns.index(column)], int | float | None) for row in rows)
            made.add_column(column, justify="right" if right else "left")
        for row in rows:
            made.add_row(*map(_shown, row))
        self.console.print(f"\n[bold]{title}[/bold]", soft_wrap=True)
        self.console.print(made)

    def bar(self, name: str, done: int, total: int, note: str = "") -> None:
        """Show `done` of `total` on the bar of this name, and create the bar if it is new."""
        self._totals[name] = total
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=total, note=note)
        self._progress.update(self._tasks[name], completed=min(done, total), total=total, note=note)

    def depth(self, values: Sequence[int], now: int) -> None:
        """The queue's depth so far. In plain mode this also prints the bars now and then."""
        line = f"  waiting in the queue: {now:>8,}  {sparkline(values, 60)}"
        self._footer.plain = line
        if not self.plain:
            return
        bars = ", ".join(f"{task.description} {task.completed:,.0f}" for task in self._progress.tasks)
        said, silent_s = f"waiting {now:,}; {bars}", time.monotonic() - self._said_s
        if silent_s > (PLAIN_UNCHANGED_EVERY_S if said == self._said else PLAIN_EVERY_S):
            self._said, self._said_s = said, time.monotonic()
            self.console.print(f"   [{self._said_s - self._started_s:4.0f} s] {said}", markup=False)


def _shown(value: object) -> str:
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
