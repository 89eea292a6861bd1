"""kill -9 of a Python worker and of the driver at twelve named points (C5, C8, C9, C13): no message is lost or doubled.

One application runs a producer stream (files of numbered rows into a queue of four members) and a consumer stream (the
queue into a Delta table). Each point is one cycle: arm, send, wait for the strike, recover with the same checkpoints,
drain, count. A cycle starts from the state its predecessor left, so it also proves that the last recovery was complete.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_jms.claims.upkeep import views
from spark_jms.log.tables.files import FILE_NAME
from spark_jms.log.tables.storage import now_ms
from spark_jms.log.upkeep.clean_up import clean_up
from tests.harness.domains.feed import QUEUE, Feed, consumer, make_queue, producer, send_numbers
from tests.harness.processes.apps import App, until
from tests.harness.processes.crash import AT_COMPACTION, AT_QUERY_START, MORE_POINTS, POINTS, CrashDirectory, Plan
from tests.harness.scenarios import account

pytestmark = pytest.mark.spark  # applications of its own

FILES, ROWS, PER_BATCH = 9, 20, 80  # nine commits trigger a compaction; three batches leave room for a crash between
RETENTION_MS = 4000  # files live long enough to be compacted, and are purged soon after
STRIKE_S, RECOVER_S = 180.0, 240.0  # limits for a busy machine; an idle one takes 1 to 10 s and 10 to 25 s
# Spark's errors when a Python process of a query has died.
EXPECTED = (
    "exited unexpectedly",
    "EOFException",
    "Connection reset",
    "Broken pipe",
    "Connection refused",
    "terminated",
)


@dataclass
class Chain:
    """A domain and an application that goes through one crash after another."""

    path: Path
    in_doubt_timeout_ms: int = 300_000
    outcomes: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root, self.table = self.path / "domain", self.path / "output"
        self.domain = make_queue(self.root, retention_ms=RETENTION_MS, in_doubt_timeout_ms=self.in_doubt_timeout_ms)
        self.feed = Feed(self.path / "input")
        send_numbers(self.domain, range(ROWS))  # sent before the consumer starts, so that its first batch has messages
        self.feed.sent = ROWS
        self.crash = CrashDirectory(self.path / "crash")
        streams = {
            "producer": producer(self.root, self.feed, self.path / "producer"),
            "consumer": consumer(self.root, self.table, self.path / "consumer", PER_BATCH),
        }
        self.app = App(self.path / "app", streams, crash=self.crash.path)

    def cycle(self, plan: Plan) -> None:
        began = time.monotonic()
        failed_before = len(self.app.events("failed"))
        self.crash.arm(plan)
        if not self.app.alive:
            self.app.start()
        elif plan.point in AT_QUERY_START:
            self.app.restart_query("consumer")
        if plan.point in AT_COMPACTION:
            self._send_many_commits()
        self.feed.add(FILES, ROWS)
        self._await_strike(plan, failed_before)
        struck = time.monotonic()
        if plan.target == "driver":
            self.app.reap()
            self.app.start()
        self._drain(plan, failed_before)
        self._check(plan, failed_before)
        self.outcomes.append(
            {
                "point": plan.point,
                "target": plan.target,
                "nth": plan.nth,
                "orphan": plan.orphan,
                "sent": self.feed.sent,
                "strike_s": round(struck - began, 1),
                "recovery_s": round(time.monotonic() - struck, 1),
                "outcome": "exactly once",
            }
        )

    def _send_many_commits(self) -> None:
        """Nine commits within a second: the producer stream sends so slowly that a purge mostly precedes compaction."""
        for _ in range(FILES):
            send_numbers(self.domain, range(self.feed.sent, self.feed.sent + ROWS))
            self.feed.sent += ROWS

    def _await_strike(self, plan: Plan, failed_before: int) -> None:
        def more() -> bool:
            if self.crash.fired():
                return True
            if account.count_of(self.table) == self.feed.sent:  # everything arrived: the point needs more traffic
                self.feed.add(FILES, ROWS)
            return False

        def check_running() -> None:
            if not self.crash.fired():
                self._no_failure(failed_before)
                self.app.check_alive()

        until(f"{plan} to be reached ({self.crash.hits()} hits)", more, STRIKE_S, or_fail=check_running)

    def _no_failure(self, before: int) -> None:
        fresh = self.app.events("failed")[before:]
        assert not fresh or self.crash.fired(), f"a query failed without a strike: {fresh}"

    def _drain(self, plan: Plan, failed_before: int) -> None:
        def too_many() -> None:
            self.app.check_alive()
            fresh = self.app.events("failed")[failed_before:]
            assert len(fresh) <= 1, f"{plan}: a query failed again after the strike: {fresh}"

        def drained() -> bool:
            return account.count_of(self.table) >= self.feed.sent

        until(f"all messages after {plan}", drained, RECOVER_S, or_fail=too_many)

    def _check(self, plan: Plan, failed_before: int) -> None:
        rows = account.rows_of(self.table)
        account.check_exactly_once(rows, self.feed.sent)
        account.check_order(rows)
        account.check_dense(rows, account.last_sequences(self.root, QUEUE, 4))
        for failure in self.app.events("failed")[failed_before:]:
            assert any(text in failure["error"] for text in EXPECTED), f"{plan}: unexpected error: {failure}"
            assert "spark_jms.errors" not in failure["error"], f"{plan}: {failure}"

    def finish(self) -> None:
        """Check the final state: no claim is open, each message is acknowledged once, no stray file is left."""
        self.crash.disarm()
        last = account.last_sequences(self.root, QUEUE, 4)
        with views.opened_store(self.domain) as store:

            def all_acknowledged() -> bool:
                rows = views.subscriptions(self.domain, store, QUEUE)
                return all(row.backlog == row.claimed == 0 for row in rows)

            until("the last acknowledgement", all_acknowledged, 60)
        until("its row", lambda: account.acknowledged_count(self.root, QUEUE) >= sum(last.values()), 30)
        self.app.stop()
        until("every process of the application to end", lambda: not self.app.processes(), 30)
        rows = account.rows_of(self.table)
        account.check_exactly_once(rows, self.feed.sent)
        account.check_acknowledged(self.root, QUEUE, last)
        log = self.domain.log(QUEUE)
        clean_up(log, now=now_ms() + 2 * log.refresh().destination.file_grace_ms)
        files = {name for name in os.listdir(self.root / QUEUE) if FILE_NAME.search(name)}
        assert files == set(log.refresh().files), "clean-up left files of failed attempts"


def run_chain(path: Path, plans: list[Plan]) -> None:
    path.mkdir(parents=True, exist_ok=True)
    chain = Chain(path)
    try:
        for plan in plans:
            chain.cycle(plan)
        chain.finish()
    finally:
        chain.app.sweep()
        print("\n".join(map(str, chain.outcomes)))
        report = os.environ.get("JMSQ_CRASH_REPORT")
        if report:
            with open(report, "a") as file:
                file.writelines(json.dumps(outcome) + "\n" for outcome in chain.outcomes)


@pytest.mark.timeout(900)
def test_messages_arrive_exactly_once_after_a_crash_at_each_point(tmp_path: Path) -> None:
    """C5, C8, C9, C13: every point once, with alternating targets."""
    plans = [Plan(point, ("worker", "driver")[(i + i // 2) % 2]) for i, point in enumerate(POINTS)]
    plans.insert(0, Plan("before-task-read", "driver"))  # the first batch: Spark logs it and never finishes it
    run_chain(tmp_path, plans)


ORPHANS = ("die", "continue", "linger")


@pytest.mark.soak
@pytest.mark.parametrize("repetition", [0, 1, 2])
@pytest.mark.parametrize("target", ["worker", "driver"])
def test_messages_arrive_exactly_once_for_every_point_and_target(tmp_path: Path, target: str, repetition: int) -> None:
    """C5, C8, C9, C13: the full matrix and five more points; a repetition changes the hit and what orphans do."""
    late = {
        "file-write": 1 + 5 * repetition,
        "send-commit": 1 + 3 * repetition,
        "claim-write": 1 + 2 * repetition,
        "task-read": 1 + 4 * repetition,
        "record-look": 1 + repetition,
    }
    plans = [Plan("before-task-read", target, orphan=ORPHANS[repetition])] + [
        Plan(point, target, late.get(point.split("-", 1)[1], 1), ORPHANS[repetition])
        for point in (*POINTS, *MORE_POINTS)
    ]
    run_chain(tmp_path, plans)


@pytest.mark.soak
@pytest.mark.parametrize("target", ["worker", "driver"])
def test_first_claim_that_no_offset_names_is_dropped(tmp_path: Path, target: str) -> None:
    """C5: a crash between the first claim of a new query and the first offset that names it. The query restarts under its
    identity, which the empty first batch has logged, drops the claim and delivers its messages at once, unflagged."""
    chain = Chain(tmp_path)
    try:
        chain.crash.arm(Plan("after-claim-write", target, orphan="die"))
        chain.app.start()
        until("the strike", chain.crash.fired, STRIKE_S)
        if target == "driver":
            chain.app.reap()
            chain.app.start()
        until("all messages", lambda: account.count_of(chain.table) >= ROWS, RECOVER_S, or_fail=chain.app.check_alive)
        account.check_exactly_once(account.rows_of(chain.table), ROWS)
    finally:
        chain.app.sweep()
