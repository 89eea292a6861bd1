"""The first hour of a JMS programmer and of an operator, by README and OPERATING, without Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.harness.project import PROJECT
from tests.harness.users.installation import installation
from tests.harness.users.pages import block, blocks, lines, promised, says_it_prints
from tests.harness.users.walks import FIRST_MESSAGES, Walk

README, OPERATING = "README.md", "docs/OPERATING.md"
ENDLESS = ("jmsq forward", "--watch", "--every")  # the reader ends them with Ctrl-C
ORDER = ("Looking", "Backup and restore", "Changing", "Housekeeping")  # a backup holds what the changes remove
ASKING = ("jmsq purge orders", "jmsq drop invoices")
PLACEHOLDERS = (
    "657f648552586e8a",
    "prices/billing",
    "postgresql://db",
    "jmsq redrive failed",
    "east",
)  # a claim, a subscription, a database, an error destination, a server of the reader's

OPERATING_PRINTS = {  # command of OPERATING, in the order in which they are run behind the README's first block -> its lines
    "jmsq list": """
destination kind members routing max message retention in doubt subscriptions
─…
invoices queue             1 round-robin 1.0 MiB  1 d 1 min –
orders   distributed-queue 4 round-robin 10.0 MiB 0   1 min –
prices   topic             1 round-robin 10.0 MiB 0   1 min –
""",
    "jmsq stat": """
Destinations
name     kind              members sent  backlog oldest claimed consumers stored files size headers   version
─…
invoices queue             1       0     0       –      0       0         0      0     0 B  0 B       0
orders   distributed-queue 4       1,001 1,000   …Z     0       0         1,001  5     …    500.0 KiB 2
prices   topic             1       0     0       –      0       0         0      0     0 B  0 B       0
Members
destination member subscription last backlog claimed consumers files size
─…
invoices    0      -            0    0       0       –         0     0 B
orders      0      -            251  250     0       –         2     …
orders      1      -            250  250     0       –         1     …
orders      2      -            250  250     0       –         1     …
orders      3      -            250  250     0       –         1     …
prices      0      –            0    –       –       –         0     0 B
the clock of this host is …
""",
    "jmsq subscriptions orders": """
destination subscription member floor last backlog claimed consumers epoch delayed expired
─…
orders      -            0      1     251  250     0       –         …     0       0
orders      -            1      0     250  250     0       –         …     0       0
orders      -            2      0     250  250     0       –         …     0       0
orders      -            3      0     250  250     0       –         …     0       0
""",
    "jmsq explain orders \"JMSPriority > 7 AND color = 'red'\"": """
orders
member files messages files skipped skipped read matching
─…
0      1     250      1             250     0    0
1      1     250      1             250     0    0
2      1     250      1             250     0    0
3      1     250      1             250     0    0
JMSPriority > 7: skips 1,000 message(s) by statistics
columns read of the other files: JMSPriority, properties
without statistics: color
""",
    "jmsq claims": "no message is claimed",
    "jmsq transactions": "no transaction is open",
    "jmsq acks orders": """
Acknowledgements of orders
subscription member rows messages waiting last consumer last acknowledged
─…
-            0      1    1        0       client-…      …Z
-            1      0    0        0       –             –
-            2      0    0        0       –             –
-            3      0    0        0       –             –
Newest
acknowledged subscription member messages first last consumer claim
─…
…Z           -            0      1        1     1    client-… 1-…
""",
    "jmsq events orders --sequence 42": "messageLoggingEnabled is off",
    'jmsq browse orders --selector "JMSPriority > 6"': "orders has no such messages",
    "jmsq backup backups/monday": """
invoices: version 0, 0 messages, 0 unfinished
orders: version 2, 1,001 messages, 1,000 unfinished
prices: version 0, 0 messages, 0 unfinished
backup backups/monday is complete: 22 files, … bytes, … s
""",
    "jmsq --root restored restore backups/monday --dry-run": "…/restored would be restored: "
    "3 destination(s), 1,000 unfinished message(s), which are flagged as redelivered; store file",
    "jmsq --root restored restore backups/monday": "…/restored is restored: "
    "3 destination(s), 1,000 unfinished message(s), which are flagged as redelivered; store file",
    "jmsq apply conf/jms-module.yaml": """
destination detail
─…
orders   unchanged –
prices   unchanged –
invoices unchanged –
""",
    "jmsq purge orders --dry-run": """
would drop 1,000 message(s) of orders
would delete 5 file(s) with 1,001 finished message(s)
""",
    "jmsq purge orders": """
dropped 1,000 message(s) of orders
deleted 5 file(s) with 1,001 finished message(s)
""",
    "jmsq purge orders --acknowledged-only": "deleted 0 file(s) with 0 finished message(s)",
    'jmsq move orders invoices --selector "JMSPriority > 6" --dry-run': "would move 0 message(s) of orders to invoices",
    'jmsq move orders invoices --selector "JMSPriority > 6"': "moved 0 message(s) of orders to invoices",
    "jmsq move orders orders --member 3 --to-member 0": "moved 0 message(s) of orders to orders, member 0",
    "jmsq drop invoices --dry-run": "would drop invoices: 0 stored message(s) in 0 B, 0 unfinished",
    "jmsq drop invoices": "dropped invoices: 0 stored message(s) in 0 B, 0 unfinished",
    "jmsq rename prices quotes": "renamed prices to quotes; its table stays at prices",
    "jmsq pause orders": """
paused member since
─…
production  all …Z
insertion   all …Z
consumption all …Z
""",
    "jmsq pause orders --member 3 --production": """
paused member since
─…
production  all …Z
production  3   …Z
insertion   all …Z
consumption all …Z
""",
    "jmsq resume orders": "nothing of orders is paused",
    "jmsq housekeep --once": """
destination expired messages purged messages purged files compacted files checkpoints deleted files
─…
orders      0                0               0            0               0           0             done
quotes      0                0               0            0               0           0             done
""",
}

pytestmark = pytest.mark.timeout(900)


def first_messages(walk: Walk) -> str:
    return walk.shell(block(README, "bash", "export JMSQ_ROOT").text)


def literal(page: str, heading: str) -> list[str]:
    """The commands of a chapter that a test can run as they are."""
    commands = [c for one in blocks(page) if one.heading == heading and one.language == "bash" for c in one.commands]
    return [command for command in commands if not any(word in command for word in (*ENDLESS, *PLACEHOLDERS))]


def test_jms_programmer_sends_and_receives(tmp_path: Path) -> None:
    """C11, C14: the README from the clone to the first message of a program, with the client only."""
    walk = Walk.start("JMS programmer", installation(), tmp_path)
    assert lines(first_messages(walk)) == promised(FIRST_MESSAGES)
    walk.reached("first message from the shell")
    program = block(README, "python", "connect(")
    assert walk.run("python", "-c", program.text) == "1 hello\n"
    walk.reached("first message of a program")
    hello = "examples/client_hello.py"
    assert lines(walk.run("python", hello)) == says_it_prints(PROJECT / hello)


def test_operator_looks_changes_backs_up_and_restores(tmp_path: Path) -> None:
    """C13, C14, C19: every command of OPERATING that needs nothing of the reader's own, and each line that it prints."""
    walk = Walk.start("operator", installation(), tmp_path)
    first_messages(walk)
    commands = [command for chapter in ORDER for command in literal(OPERATING, chapter)]
    assert commands == list(OPERATING_PRINTS)
    for command in commands:
        printed = walk.shell(f"export JMSQ_ROOT=$PWD/messages\n{command}" + (" --yes" if command in ASKING else ""))
        assert lines(printed) == promised(OPERATING_PRINTS[command]), command
    before, after = (
        json.loads(walk.shell(f"jmsq --root {where} stat orders --json"))["destinations"][0]
        for where in ("messages", "restored")
    )
    assert (before["backlog"], after["backlog"]) == (0, 1000)
    walk.reached("backed up, purged and restored")
