"""T17: producers and consumers that are used again."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator

import pytest

import spark_jms
from spark_jms.client import ClientPool, Context, PoolStatistics, Producer
from spark_jms.errors import ClosedError, DomainError, MemberUnavailableError, OptionError
from spark_jms.testing import memory_domain
from spark_jms.testing.inside import acknowledgement_writer_of, members_of, receiver_of, subscriber_of

IDLE_S = 60.0
SPREAD = {"kind": "distributed-queue", "members": 4}


class Hand:
    """A clock that the test moves."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def root() -> Iterator[str]:
    with memory_domain("file", orders="queue", prices="topic", spread=SPREAD) as where:
        yield where


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def pool(root: str, hand: Hand) -> Iterator[ClientPool]:
    def connect() -> Context:
        return spark_jms.connect(root, housekeeping=False)

    with ClientPool(connect, 2, IDLE_S, hand) as made:
        yield made


def test_producer_is_used_again(pool: ClientPool) -> None:
    """T17: one at a time or at once."""
    with pool.producer("orders") as first, pool.producer("orders") as same:
        assert first is same
        assert pool.statistics() == PoolStatistics(idle=0, in_use=1, made=1, reused=1)
    with pool.producer("orders") as again, pool.producer("orders", send_timeout="1 s") as other:
        assert again is first
        assert other is not first
        again.send(text="a")
    assert pool.statistics() == PoolStatistics(idle=2, in_use=0, made=2, reused=2)


def test_consumer_belongs_to_one_block_at_a_time(pool: ClientPool) -> None:
    """T17"""
    with pool.consumer("orders") as one, pool.consumer("orders") as two:
        assert one is not two
    with pool.consumer("orders") as again, pool.consumer("orders", acknowledge="auto") as other:
        assert again in (one, two)
        assert other not in (one, two)


def test_returned_consumer_releases_its_messages(pool: ClientPool) -> None:
    """T17, C8: what it has acknowledged is finished; the rest is delivered again, flagged if it was delivered."""
    with pool.producer("orders") as producer:
        producer.send_many([{"text": text} for text in "abc"])
    with pool.consumer("orders", acknowledge="individual") as consumer:
        first, second = consumer.receive(10), consumer.receive(10)
        assert first is not None
        assert second is not None
        first.acknowledge()
    with pool.consumer("orders", acknowledge="auto") as other:
        found = [other.receive(10) for _ in range(2)]
    assert [(m.text, m.redelivered) for m in found if m is not None] == [("b", True), ("c", False)]


def test_idle_consumers_keep_no_members_from_others(pool: ClientPool, root: str) -> None:
    """T17, C9: a consumer with its share of members asks for no more, so what idle ones held would wait."""
    with pool.consumer("spread") as one, pool.consumer("spread") as two:
        assert [one.receive(0), two.receive(0), one.receive(0.2), two.receive(0.2)] == [None] * 4
    with spark_jms.connect(root, housekeeping=False) as other:
        other.producer("spread").send_many([{"text": str(n)} for n in range(8)])
        with other.consumer("spread", acknowledge="auto") as busy:
            assert sum(busy.receive(1) is not None for _ in range(8)) == 8
    with pool.consumer("spread") as again:
        assert again in (one, two)


def test_use_ends_while_an_administrator_has_the_record_set(pool: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """T17, C9: the consumer is closed, as `close` does it without an error, and the next use makes another one."""
    with pool.producer("orders") as producer:
        producer.send(text="a")
    with pool.consumer("orders") as consumer:
        assert consumer.receive(10) is not None

        def held(timeout_s: float) -> None:
            raise MemberUnavailableError("an administrator has it open")

        monkeypatch.setattr(acknowledgement_writer_of(consumer), "write", held)
    assert consumer.closed
    with pool.consumer("orders", acknowledge="auto") as other:
        message = other.receive(10)
    assert message is not None
    assert (message.text, message.redelivered) == ("a", True)


def test_end_of_the_block_raises_an_error_of_the_background(pool: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """T17, C20: the next user of the consumer does not get it; and what was received is acknowledged."""

    def check() -> None:
        raise OSError("the disk is full")

    with pool.producer("orders") as producer:
        producer.send(text="a")
    block = pool.consumer("orders", acknowledge="auto")
    consumer = block.__enter__()
    assert consumer.receive(10) is not None
    monkeypatch.setattr(receiver_of(consumer), "_check_context", check)
    with pytest.raises(OSError, match="the disk is full"):
        block.__exit__(None, None, None)
    assert consumer.closed
    assert list(pool.context().browser("orders")) == []


def test_closed_client_is_made_again(pool: ClientPool) -> None:
    """T17: also when the whole context was closed."""
    with pool.producer("orders") as producer, pool.consumer("orders") as consumer:
        producer.close()
        consumer.close()
    assert pool.statistics().idle == 0
    with pool.producer("orders") as again:
        assert again is not producer
        again.send(text="a")
    pool.context().close()
    with pool.producer("orders") as third:
        assert third is not again
        third.send(text="b")


@pytest.mark.parametrize("kind", ["producer", "consumer"])
@pytest.mark.parametrize("reused", [False, True])
def test_interrupt_while_a_client_is_taken_leaves_none_in_use(
    pool: ClientPool, monkeypatch: pytest.MonkeyPatch, kind: str, reused: bool
) -> None:
    """T17: Ctrl-C between the taking and the block: the client is given back, and used again."""
    take = getattr(pool, kind)
    if reused:
        with take("orders"):
            pass
    close_idle, interrupts = pool._close_idle, iter([KeyboardInterrupt])

    def interrupted() -> None:
        for error in interrupts:
            raise error
        close_idle()

    monkeypatch.setattr(pool, "_close_idle", interrupted)
    with pytest.raises(KeyboardInterrupt), take("orders"):
        pytest.fail("the block is not entered")
    assert (pool.statistics().in_use, pool.statistics().idle) == (0, 1)
    with take("orders"):
        assert pool.statistics().in_use == 1
    assert pool.statistics().made == 1


def test_consumer_whose_session_has_ended_is_made_again(hand: Hand) -> None:
    """T17: the process stalled for longer than its session's time-out; the application sees no error of it."""
    with (
        memory_domain(orders="queue") as root,
        ClientPool(lambda: spark_jms.connect(root, housekeeping=False), 2, IDLE_S, hand) as pool,
    ):
        with pool.consumer("orders") as consumer:
            assert consumer.receive(timeout=0) is None
        members = members_of(subscriber_of(consumer))
        members.store.crash(members.session)  # type: ignore[attr-defined]
        hand.now_s += 5
        with pool.consumer("orders") as again:
            assert again.receive(timeout=0) is None
            assert again.name != consumer.name
        assert consumer.closed


def test_pool_is_bounded(pool: ClientPool, hand: Hand) -> None:
    """T17: at most two idle ones, none for longer than a minute."""
    with pool.producer("orders") as one, pool.producer("prices") as two, pool.consumer("orders") as three:
        pass
    assert [client.closed for client in (one, two, three)].count(True) == 1
    assert pool.statistics().idle == 2
    hand.now_s += IDLE_S - 1
    with pool.producer("orders", send_timeout=1) as young:
        pass
    hand.now_s += 1
    with pool.producer("orders", send_timeout=1) as same:
        assert same is young
    assert all(client.closed for client in (one, two, three))
    assert pool.statistics().idle == 1


def test_consumer_that_would_exclude_others_or_collect_messages_is_not_kept(pool: ClientPool) -> None:
    """T17, C10"""
    with (
        pool.consumer("prices") as own,
        pool.consumer("prices", subscription="live", durable=False) as live,
        pool.consumer("prices", subscription="alone", sharing="exclusive") as alone,
        pool.consumer("prices", subscription="billing") as durable,
    ):
        pass
    assert [one.closed for one in (own, live, alone, durable)] == [True, True, True, False]


def test_threads_share_the_pool(pool: ClientPool) -> None:
    """T17: each message is sent and received once."""
    failures: list[Exception] = []
    texts: list[str] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                with pool.producer("orders") as producer:
                    producer.send(text=f"{number}/{turn}")
                with pool.consumer("orders", acknowledge="individual", prefetch=1) as consumer:
                    message = consumer.receive(30)
                    assert message is not None
                    message.acknowledge()
                    texts.append(str(message.text))
        except Exception as error:  # noqa: BLE001 - the test raises it below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(texts) == sorted(f"{number}/{turn}" for number in range(4) for turn in range(5))
    assert pool.statistics().in_use == 0


def test_producer_that_is_given_back_is_not_taken(pool: ClientPool, monkeypatch: pytest.MonkeyPatch) -> None:
    """T17: whoever needs one in that moment gets another one, which is in use until its block ends."""
    closed, taken, others = Producer.closed, contextlib.ExitStack(), []

    def take_another(producer: Producer) -> bool:
        monkeypatch.setattr(Producer, "closed", closed)
        others.append(taken.enter_context(pool.producer("orders")))
        return producer.closed

    with taken:
        with pool.producer("orders") as first:
            monkeypatch.setattr(Producer, "closed", property(take_another))  # the pool asks when it is given back
        assert others[0] is not first
        assert (pool.statistics().in_use, pool.statistics().idle) == (1, 1)
    assert (pool.statistics().in_use, pool.statistics().idle) == (0, 2)


def test_forked_child_opens_its_own(pool: ClientPool) -> None:
    """T17, C9: the child's use does not disturb the parent's."""
    with pool.producer("orders") as producer:
        producer.send(text="parent")
        child = os.fork()
        if child == 0:
            code = 1
            with contextlib.suppress(Exception), pool.producer("orders") as own:
                own.send(text="child")
                code = 0 if own is not producer else 2
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        producer.send(text="parent again")
    with pool.consumer("orders", acknowledge="auto") as consumer:
        assert [m.text for m in consumer.messages(0.1)] == ["parent", "child", "parent again"]


def test_wrong_use_is_named(root: str, pool: ClientPool) -> None:
    """T17, C11"""
    with (
        pytest.raises(OptionError, match="cannot be pooled: use Context.consumer"),
        pool.consumer("orders", listener=print),
    ):
        pass
    with pytest.raises(OptionError, match="max_idle is -1, but must be a whole number, 0 or more"):
        spark_jms.connect_pool(root, max_idle=-1)
    with pytest.raises(OptionError, match="idle: "):
        spark_jms.connect_pool(root, idle="soon")
    with spark_jms.connect_pool(f"{root}/nowhere") as nowhere, pytest.raises(DomainError):
        nowhere.context()
    with spark_jms.connect_pool(root, max_idle=0, housekeeping=False) as none:
        with none.producer("orders") as producer:
            pass
        assert producer.closed
    with pytest.raises(ClosedError, match="this pool is closed"):
        none.context()
    assert repr(none) == "<ClientPool: closed, 0 in use, 0 idle>"
