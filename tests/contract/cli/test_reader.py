"""What a user may do who may read a domain's files and write none (C14)."""

from __future__ import annotations

import json
import os
import sys

from spark_jms import connect
from spark_jms.testing import memory_domain
from tests.harness.processes import forked

# The first turn, with all rights, imports what the second needs: another user may not read the installation.
_LOOKS = """
import json, os, stat, sys
from click.testing import CliRunner
from spark_jms import connect
from spark_jms.admin.domain_sample import take
from spark_jms.claims.upkeep.views import opened_store
from spark_jms.cli.__main__ import cli
from spark_jms.log.destinations.domain import Domain
root = sys.argv[1]
looks = (["stat"], ["stat", "--json"], ["list"], ["describe", "work"], ["browse", "work"], ["subscriptions"], ["claims"],
    ["acks", "work"], ["transactions"], ["explain", "work", "a = 1"], ["server", "list"], ["store", "check"])
def turn():
    found = {}
    for words in looks:
        result = CliRunner().invoke(cli, [*words, "--root", root])
        found[" ".join(words)] = [result.exit_code, result.output]
    domain = Domain(root)
    with opened_store(domain) as store:
        found["sample"] = [0, json.dumps(dict(take(domain, store).problems))]
    try:
        with connect(root, housekeeping=False) as context, context.consumer("work", acknowledge="individual") as consumer:
            consumer.receive(0)
        found["receive"] = [0, ""]
    except Exception as error:
        found["receive"] = [1, f"{type(error).__name__}: {error}"]
    return found
turn()
for folder, _, names in os.walk(root):
    os.chmod(folder, 0o555)
    for name in names:
        os.chmod(os.path.join(folder, name), 0o444)
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(json.dumps(turn()))
"""


def test_looking_needs_no_right_to_write() -> None:
    """C14, S9: every look works, also beside a consumer of another user; what would write names the right that it lacks."""
    with memory_domain("file", work="queue", news="topic") as root, connect(root, housekeeping=False) as context:
        context.producer("work").send(text="a")
        consumer = context.consumer("work", acknowledge="individual")
        assert consumer.receive(5) is not None
        done = forked.run([sys.executable, "-c", _LOOKS, root], timeout=120, capture_output=True, text=True)
        for folder, _, names in os.walk(root):
            os.chmod(folder, 0o755)
            for name in names:
                os.chmod(os.path.join(folder, name), 0o644)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        code, text = found.pop("receive")
        assert (code, text.partition(":")[0]) == (1, "StoreRightsError")
        assert {name: text for name, (code, text) in found.items() if code} == {}
        assert "a" in found["browse work"][1]
        assert found["sample"][1] == "{}"
