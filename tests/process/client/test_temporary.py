"""A context with a temporary queue, killed (C15)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_jms import connect
from spark_jms.cli.__main__ import cli
from spark_jms.errors import TemporaryDestinationDeletedError
from spark_jms.log.destinations.temporary import OWNERS, TABLES
from spark_jms.testing import memory_domain
from tests.harness.processes import forked
from tests.harness.project import PROJECT

REQUESTOR = """
import sys
from spark_jms import connect
context = connect(sys.argv[1])
queue = context.create_temporary_queue()
context.producer("work").send(text="question", reply_to=queue.name)
print(queue.name, flush=True)
context.consumer(queue.name).receive()
"""


def test_housekeeping_deletes_the_queue_of_a_killed_context() -> None:
    """C15: the reply to it has a named error, before the deletion it is simply lost."""
    with memory_domain("file", work="queue") as root, connect(root, housekeeping=False) as context:
        environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
        with forked.Popen(
            [sys.executable, "-c", REQUESTOR, root], stdout=subprocess.PIPE, text=True, env=environment
        ) as process:
            assert process.stdout is not None
            name = process.stdout.readline().strip()
            process.send_signal(signal.SIGKILL)
        with context.consumer("work", acknowledge="auto") as consumer:
            message = consumer.receive(timeout=30)
            assert message is not None
            assert message.reply_to == name
            message.reply(text="lost")
            done = CliRunner().invoke(cli, ["housekeep", "work", "--once", "--root", root])
            assert done.exit_code == 0, done.output
            assert os.listdir(Path(root, OWNERS)) == os.listdir(Path(root, TABLES)) == []
            with pytest.raises(TemporaryDestinationDeletedError):
                message.reply(text="too late")
