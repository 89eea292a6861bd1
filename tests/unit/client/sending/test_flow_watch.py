"""Flow control of one process: when it looks, what it logs, and how long a producer waits (T5)."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

import pytest

from spark_jms.client.sending.flow_control import FlowStatistics, ProducerFlow
from spark_jms.core.limits.flow_control import FlowParameters, FlowThreshold, FlowThresholds
from spark_jms.core.limits.quota import MessageUsage
from spark_jms.errors import ClosedError, DomainError
from spark_jms.log.destinations.limits import FlowWatch, Watched
from spark_jms.testing.domain import wait_until

TEN = FlowThresholds(messages=FlowThreshold(10, 5))


@dataclass
class Scene:
    """A destination whose usage the test sets, and a clock that the producer's waits advance."""

    thresholds: FlowThresholds = TEN
    messages: int = 0
    now_s: float = 1000.0
    looks: int = 0
    fails: bool = False
    free_from_s: float = float("inf")  # nothing is used then
    slept: list[float] = field(default_factory=list)

    def usages(self) -> dict[str, MessageUsage]:
        self.looks += 1
        if self.fails:
            raise DomainError("the root cannot be reached")
        messages = self.messages if self.now_s < self.free_from_s else 0
        return {"orders": MessageUsage(messages, 100 * messages)}

    def watch(self) -> FlowWatch:
        return FlowWatch(lambda: [Watched("orders", lambda: self.thresholds, self.usages)], lambda: self.now_s)

    def producer(self, parameters: FlowParameters) -> ProducerFlow:
        made = ProducerFlow(parameters, self.watch(), lambda: self.now_s)

        def sleep(seconds: float) -> None:
            self.slept.append(seconds)
            self.now_s += seconds

        made._sleep = sleep  # type: ignore[method-assign]
        return made


def test_process_looks_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """T5: however often it sends, and a change is logged once."""
    scene = Scene()
    watch = scene.watch()
    with caplog.at_level(logging.INFO, "spark_jms"):
        for scene.messages in (11, 11, 7, 4):
            for _ in range(5):
                watch.armed()
            scene.now_s += 1
    assert scene.looks == 4
    assert caplog.messages == [
        "orders exceeds its messagesThresholdHigh: senders slow down (11 messages, 1,100 bytes)",
        "orders is below its messagesThresholdLow: senders may go faster (4 messages, 400 bytes)",
    ]


def test_without_thresholds_nothing_is_looked_at() -> None:
    """T5: and sends do not wait."""
    scene = Scene(FlowThresholds(), messages=10**9)
    flow = scene.producer(FlowParameters())
    for _ in range(1000):
        flow.wait(1000)
    assert (scene.looks, scene.slept) == (0, [])
    assert flow.statistics() == FlowStatistics()


def test_usage_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """T5: a send does not fail for it; the log tells why."""
    scene = Scene(messages=11)
    watch = scene.watch()
    assert watch.armed()
    scene.fails, scene.now_s = True, scene.now_s + 2
    assert watch.armed()
    assert "orders: its usage cannot be read, so flow control stays as it is" in caplog.text


def test_producer_keeps_its_rate_over_time() -> None:
    """T5: what it sends within each second follows the limit: the steps of the text, down and up again."""
    scene = Scene(messages=11)
    flow = scene.producer(FlowParameters(100, 12.5, 60_000, 3))
    sent: dict[int, int] = {}
    while scene.now_s < 1140:
        if scene.now_s >= 1080:
            scene.messages = 0
        flow.wait(1)
        second = int(scene.now_s)
        sent[second] = sent.get(second, 0) + 1
        if flow.statistics().limit is None:
            break
    rates = [sum(sent.get(at + n, 0) for n in range(10)) / 10 for at in range(1000, 1140, 20)]
    assert rates[:5] == pytest.approx([100, 50, 25, 12.5, 12.5], rel=0.05)
    assert rates[5] == pytest.approx(12.5 + 87.5 / 3, rel=0.05)
    assert rates[6] == pytest.approx(12.5 + 2 * 87.5 / 3, rel=0.05)
    assert flow.statistics().limit is None
    assert scene.now_s == pytest.approx(1140, abs=1)
    assert flow.statistics().waited_s == pytest.approx(sum(scene.slept))


def test_batch_waits_for_its_whole_debt() -> None:
    """T5: the first one too, and longer than a minute; only the last message needs not be paid for."""
    scene = Scene(messages=11)
    flow = scene.producer(FlowParameters(50, 50, 60_000, 1))
    flow.wait(500)
    assert sum(scene.slept) == pytest.approx(499 / 50)
    flow.wait(1)
    assert sum(scene.slept) == pytest.approx(10)
    flow.wait(10_000)
    assert sum(scene.slept) == pytest.approx(10 + 200)
    assert flow.statistics().debt == pytest.approx(1)


def test_batch_that_may_not_wait_longer_leaves_the_rest_as_debt() -> None:
    """T5, C13: its files are not safe for ever, and the next one pays for it."""
    scene = Scene(messages=11)
    flow = scene.producer(FlowParameters(50, 50, 60_000, 1))
    flow.wait(1_000, longest_s=5.0)
    assert sum(scene.slept) == pytest.approx(5)
    assert flow.statistics().debt == pytest.approx(750)
    flow.wait(1)
    assert sum(scene.slept) == pytest.approx(20)


def test_part_of_a_batch_is_what_a_second_allows() -> None:
    """T5: as long as the producer is limited."""
    scene = Scene(messages=11)
    flow = scene.producer(FlowParameters(100, 12.5, 60_000, 3))
    assert flow.share(30) == 30
    assert flow.share(1_000) == 100
    scene.now_s += 60
    assert flow.share(1_000) == 13
    scene.messages, scene.now_s = 0, scene.now_s + 120
    assert flow.share(1_000) == 1_000


def test_waiting_producer_goes_at_once_when_the_limit_ends() -> None:
    """T5: it looks again every second."""
    scene = Scene(messages=11, free_from_s=1_001.5)
    flow = scene.producer(FlowParameters(50, 50, 2_000, 1))
    flow.wait(2000)
    assert sum(scene.slept) <= 4
    assert flow.statistics() == FlowStatistics(waited_s=sum(scene.slept))


def test_close_ends_the_wait() -> None:
    """T5: the send raises ClosedError, and nothing was sent."""
    scene = Scene(messages=11)
    flow = ProducerFlow(FlowParameters(1, 1, 60_000, 1), scene.watch(), lambda: scene.now_s)
    flow.enter(1000)
    raised: list[BaseException] = []

    def send() -> None:
        try:
            flow.wait(1)
        except ClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    wait_until(lambda: flow.statistics().debt > 1000)
    flow.close()
    thread.join(10)
    assert [str(error) for error in raised] == [
        "the producer was closed while flow control kept its send back: nothing was sent"
    ]


def test_interrupt_ends_the_wait() -> None:
    """T5: Ctrl-C."""
    scene = Scene(messages=11)
    flow = scene.producer(FlowParameters(1, 1, 60_000, 1))
    flow.wait(1000)

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    flow._sleep = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        flow.wait(1)
    assert flow.statistics().armed
