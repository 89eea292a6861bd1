"""A forked child of a process with open contexts: what it inherits belongs to the parent, and it opens its own (C11, C9).

Before each fork, a thread of the parent takes every lock of the project's objects that is free, as busy threads do by chance.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from spark_jms import connect
from spark_jms.testing import memory_domain
from tests.harness.processes import forked

LIMIT_S = 120
_START = """
import asyncio, contextlib, gc, os, signal, sys, threading, warnings
warnings.simplefilter("ignore")
import spark_jms
from spark_jms import aio, connect, connect_pool
from spark_jms.client import Completion
from spark_jms.errors import ForkedProcessError, IllegalStateException
root = sys.argv[1]
kinds = (type(threading.Lock()), type(threading.RLock()), threading.Condition)
def locks():
    for thing in gc.get_objects():
        if (type(thing).__module__ or "").startswith("spark_jms") and hasattr(thing, "__dict__"):
            yield from (value for value in vars(thing).values() if isinstance(value, kinds))
def hold(held, over):
    taken = [lock for lock in locks() if lock.acquire(blocking=False)]
    held.set()
    over.wait()
    for lock in taken:
        lock.release()
def fork(child):
    held, over = threading.Event(), threading.Event()
    thread = threading.Thread(target=hold, args=(held, over))
    thread.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)  # what hangs is killed
        code = 1
        try:
            child()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    over.set()  # the parent continues, and may serve the child
    thread.join()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print("child", code, flush=True)
def refused(*calls):
    for number, call in enumerate(calls):
        try:
            call()
        except ForkedProcessError as error:
            assert "connect again" in str(error)
        else:
            raise AssertionError(f"call {number} was not refused")
"""

_CLOSES = """
with contextlib.ExitStack() as parent:
    context = parent.enter_context(connect(root))
    producer = parent.enter_context(context.producer("orders"))
    inbox = parent.enter_context(context.create_temporary_queue())
    consumer = parent.enter_context(context.consumer("orders", acknowledge="individual"))
    listening = parent.enter_context(context.consumer(inbox.name, listener=lambda m: None))
    session = parent.enter_context(context.transacted_session())
    taken = parent.enter_context(session.consumer("prices"))
    for text in "ab":
        producer.send(text=text)
        context.producer("prices").send(text=text)
    first, second = consumer.receive(10), taken.receive(10)
    session.producer("orders").send(text="of the transaction")
    def child():
        refused(
            lambda: producer.send(text="x"), lambda: producer.send_many([{"text": "x"}]),
            lambda: producer.send(text="x", completion=Completion(print, print)), producer.statistics,
            lambda: consumer.receive(1), lambda: next(consumer.messages(1)), consumer.recover, consumer.statistics,
            listening.statistics, first.acknowledge, first.reject, lambda: context.producer("orders"),
            lambda: context.consumer("orders"), lambda: list(context.browser("orders")), context.destinations,
            context.statistics, context.create_temporary_queue, lambda: context.request("orders", timeout=1, text="x"),
            inbox.delete, session.commit, session.rollback, lambda: session.producer("orders"),
            lambda: taken.receive(1), context.transacted_session, lambda: context.unsubscribe("prices", "s"),
        )
        assert "parent" in repr(context) and "parent" in repr(consumer)
        with connect(root, housekeeping=False) as own:
            own.producer("results").send(text="child")
        parent.close()  # as when it leaves the blocks
        context.close()
    fork(child)
    first.acknowledge()
    session.commit()
    context.producer(inbox.name).send(text="still there")
    producer.send(text="c")
print("done", flush=True)
"""

_POOLS = """
with connect_pool(root) as pool, pool.producer("orders") as producer, pool.consumer("orders") as consumer:
    producer.send(text="a")
    message = consumer.receive(10)
    def child():
        refused(lambda: producer.send(text="x"), message.acknowledge, lambda: consumer.receive(1))
        with pool.producer("results") as own:
            own.send(text="child")
        pool.close()
    fork(child)
    message.acknowledge()
    producer.send(text="b")
print("done", flush=True)
"""

_COROUTINES = """
async def main():
    async with aio.connect(root) as context, context.producer("orders") as producer, context.consumer("orders") as consumer:
        await producer.send(text="a")
        message = await consumer.receive(10)
        async def inherited():
            for call in (producer.send(text="x"), consumer.receive(1), message.acknowledge(), producer.send_many([{"text": "x"}])):
                try:
                    await call
                except ForkedProcessError:
                    continue
                raise AssertionError(call)
            await consumer.close()
            await producer.close()
            await context.close()
        def child():
            asyncio.events._set_running_loop(None)
            asyncio.run(inherited())
            with connect(root, housekeeping=False) as own:
                own.producer("results").send(text="child")
        fork(child)
        await message.acknowledge()
        await producer.send(text="b")
asyncio.run(main())
print("done", flush=True)
"""

_METRICS = """
from prometheus_client import CollectorRegistry, generate_latest
with connect(root) as context:
    registry = CollectorRegistry()
    registry.register(context.metrics())
    context.producer("orders").send(text="a")
    def child():
        assert generate_latest(registry) == b""
        with connect(root, housekeeping=False) as own:
            own.producer("results").send(text="child")
    fork(child)
    assert b"orders" in generate_latest(registry)
print("done", flush=True)
"""

PROGRAMS = {
    "contexts": (_CLOSES, ["b", "c", "of the transaction"]),
    "pools": (_POOLS, ["b"]),
    "coroutines": (_COROUTINES, ["b"]),
    "metrics": (_METRICS, ["a"]),
}


@pytest.mark.parametrize("store", ["file", "sqlite"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_forked_child_changes_nothing_of_its_parent(name: str, store: str, tmp_path: Path) -> None:
    """C11, T16, T17, M7: calls of what it inherits raise ForkedProcessError, closing does nothing, and its own context works."""
    program, left = PROGRAMS[name]
    where = "file" if store == "file" else f"jdbc:sqlite:///{tmp_path}/store.db"
    with memory_domain(where, orders="queue", prices="queue", results="queue") as root:
        done = forked.run(
            [sys.executable, "-c", _START + program, root], timeout=LIMIT_S, capture_output=True, text=True
        )
        assert done.stdout.splitlines() == ["child 0", "done"], done.stdout + done.stderr
        with connect(root, housekeeping=False) as context:
            assert sorted(str(m.text) for m in context.browser("orders")) == left
            assert [m.text for m in context.browser("results")] == ["child"]
