"""A consumer that is stopped inside the store's write has the journal's lock of a file store. The others wait until it is broken, and
continue. Of writers of the store alone, several at once, and with shorter times: tests/process/store/test_file_store.py (R8, C9)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

import spark_jms
from spark_jms.store import open_store
from spark_jms.testing.domain import PATIENCE, memory_domain, wait_until
from spark_jms.testing.inside import domain_of
from tests.harness.messages.shorthands import send_texts
from tests.harness.processes import forked

MESSAGES = 20
STOPPED = """
import os, signal, sys
from spark_jms import connect
from spark_jms.errors import JmsqError
from spark_jms.store import StoreError
from spark_jms.store.disk import Disk

sync = Disk.sync

def stopped(self, fd):
    Disk.sync = sync
    os.kill(os.getpid(), signal.SIGSTOP)
    sync(self, fd)

context = connect(sys.argv[1], housekeeping=False)
message = context.consumer("orders", acknowledge="individual", prefetch=1).receive(60)
print(message.text, flush=True)
sys.stdin.readline()
Disk.sync = stopped
try:
    message.acknowledge()
    print("acknowledged", flush=True)
except (JmsqError, StoreError) as error:
    print(type(error).__name__, flush=True)
os._exit(0)
"""


def test_others_continue_when_a_consumer_stops_inside_the_write() -> None:
    """R8, C9: after the store's time-out. Each message is acknowledged by one consumer. The one of the stopped consumer comes again,
    flagged, unless its acknowledgement was in the store before the stop; a consumer that is told so does not see it come again."""
    with memory_domain("file", orders="queue") as root, spark_jms.connect(root) as context:
        send_texts(context, *map(str, range(MESSAGES)))
        child = forked.Popen(
            [sys.executable, "-c", STOPPED, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            of_child = child.stdout.readline().strip()
            with context.consumer("orders", acknowledge="individual", prefetch=1) as consumer:
                child.stdin.write("\n")
                child.stdin.flush()
                _, status = os.waitpid(child.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                got: list[tuple[str | None, bool]] = []
                while {text for text, _ in got} | {of_child} != set(map(str, range(MESSAGES))):
                    message = consumer.receive(60 * PATIENCE)
                    assert message is not None
                    message.acknowledge()
                    got.append((message.text, message.redelivered))
                with open_store(domain_of(context).store_uri) as store:
                    assert store.statistics().lock_break_count == 1
                child.send_signal(signal.SIGCONT)
                told = child.stdout.readline().strip()
                child.wait()

                def is_finished() -> bool:
                    if (last := consumer.receive(0)) is not None:
                        last.acknowledge()
                        got.append((last.text, last.redelivered))
                    return next(iter(context.browser("orders")), None) is None

                wait_until(is_finished, timeout_s=60)
        finally:
            with suppress(ProcessLookupError):
                child.kill()
            child.communicate()
    assert len(dict(got)) == len(got)
    assert {text for text, flagged in got if flagged} <= {of_child}
    assert dict(got).get(of_child, True), "it comes again without its flag"
    assert told in ("acknowledged", "SessionEndedException", "ConsumerClosedException")
    assert told != "acknowledged" or of_child not in dict(got)
