"""Prints the account."""

from __future__ import annotations

from spark_jms.demo.account import QueueAccount
from spark_jms.demo.screen import Screen, sparkline
from spark_jms.demo.story import DemoResult
from spark_jms.demo.watch import DepthSample

_WIDTH = 72


def show(screen: Screen, outcome: DemoResult, seconds: float) -> None:
    screen.table("The queue `flights`", ("", "", "computed"), _queue_rows(outcome))
    names = list(outcome.queue.received)
    screen.table(
        "Messages by member and receiver",
        ("member", *names, "together"),
        [(member, *by.values(), sum(by.values())) for member, by in outcome.queue.by_member.items()],
    )
    screen.table(
        "The topic `delays`",
        ("subscription", "selector", "expected", "received", "lost", "duplicated"),
        [(s.name, s.selector or "none", s.expected, s.received, s.lost, s.duplicated) for s in outcome.subscriptions],
    )
    screen.table(
        "Start-up and speed (two Spark applications on this machine)",
        ("stage", "messages", "seconds", "of them start-up", "a second, after it"),
        [
            (
                s.stage,
                s.rows,
                round(s.seconds, 1),
                round(s.start_up_s, 1),
                s.per_second,
            )
            for s in outcome.speeds
        ],
    )
    screen.console.print(
        f"Before the first stage Spark started for {outcome.application_s:.0f} s. The application of `a` took "
        f"{outcome.start_up_s:.0f} s to start again\nafter the kill, which is in that stage's seconds. A stage's start-up lasts "
        "until its first micro-batch is done: Spark plans\nand compiles the query and starts Python. What the queue can do: "
        "docs/BENCHMARKS.md.",
        markup=False,
        soft_wrap=True,
    )
    for line in lag(outcome.samples, outcome.marks):
        screen.console.print(line, markup=False)
    screen.console.print()
    if outcome.problems:
        screen.console.print(f"Promises broken after {seconds:.0f} s: {'; '.join(outcome.problems)}", style="bold red")
    else:
        screen.console.print(f"Nothing lost, nothing twice, order kept. {seconds:.0f} s in all.", style="bold green")


def _queue_rows(outcome: DemoResult) -> list[tuple[str, object, str]]:
    q: QueueAccount = outcome.queue
    rows: list[tuple[str, object, str]] = [("sent", q.sent, "last sequence numbers of the members, from the Delta log")]
    rows += [
        (f"received by {name}", count, f"rows of its Delta table, in {q.commits[name]} commits")
        for name, count in q.received.items()
    ]
    return [
        *rows,
        ("lost", q.lost, "sequences 1 to last of each member, and flights of the feed, in neither table"),
        ("duplicated", q.duplicated, "sequences, and flights, that are there more than once"),
        ("altered", q.altered, "20 columns of every flight compared with the feed"),
        ("in hand at the kill", outcome.in_doubt, "open claims of `a`, kept for it until it was back"),
        ("taken over", outcome.taken_over, "what `b` received while the application of `a` started again"),
        ("redelivered", q.redelivered, f"flagged JMSRedelivered (most deliveries of one message: {q.most_deliveries})"),
        (
            "order kept",
            f"{q.in_order:,} of {q.aircraft:,}",
            "aircraft whose legs arrived as 1, 2, 3 … by commit time of the outputs, then place in file",
        ),
        ("  of them by both", q.by_several, "aircraft whose flights went partly to `a`, partly to `b`"),
        (
            "in two hands",
            q.in_two_hands,
            f"aircraft in open claims of both at once; {q.samples} samples, "
            f"{q.samples_shared} with a member in both hands",
        ),
        ("without aircraft", q.without_unit, "flights with no tail number: no unit of order, dealt out round robin"),
    ]


def lag(samples: list[DepthSample], marks: list[tuple[float, str]]) -> list[str]:
    """Waiting messages over time, with the events below."""
    if not samples:
        return []
    values, end = [sample.backlog for sample in samples], samples[-1].second
    last_change = next((i for i in range(len(values) - 1, 0, -1) if values[i]), 0)
    values, end = values[: last_change + 2], samples[min(last_change + 1, len(samples) - 1)].second
    line = sparkline(values, _WIDTH)
    below = [" "] * (len(line) + 24)
    free = 0
    for second, what in marks:
        at = max(min(int(second / end * len(line)), len(line) - 1), free)
        label = f"^{what}"
        below[at : at + len(label)] = label
        free = at + len(label) + 1
    return [
        "",
        f"Waiting over time (0 to {end:.0f} s, highest {max(values):,})",
        f"  {line}",
        f"  {''.join(below).rstrip()}",
    ]
