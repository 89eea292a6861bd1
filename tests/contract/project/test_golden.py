"""What a domain stores and what is shown of it, as files in golden/: so a change of the program's inside that changes either is
seen. Ids, times, sizes and this machine's names are replaced by their kind. `JMSQ_WRITE_GOLDEN=1` writes the files anew."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from spark_jms import admin as administration
from spark_jms import apply, connect
from spark_jms.admin.domain_sample import take
from spark_jms.cli.__main__ import cli
from spark_jms.console.history import History
from spark_jms.console.page import page
from spark_jms.testing.inside import domain_of, records_of

GOLDEN = Path(__file__).parent / "golden"
MODULE = {
    "servers": {"east": {"store": "file", "messagesThresholdHigh": 100, "messagesThresholdLow": 50}},
    "quotas": {"small": {"messagesMaximum": 50}},
    "connectionFactories": {"near": {"loadBalancingEnabled": False}},
    "destinations": {
        "orders": {
            "kind": "distributed-queue",
            "servers": ["home", "east"],
            "quota": "small",
            "messageLoggingEnabled": True,
        },
        "failed": {"kind": "queue"},
        "invoices": {"kind": "queue", "redeliveryLimit": 1, "errorDestination": "failed", "redeliveryDelay": "1 hour"},
        "prices": {"kind": "topic", "promotedProperties": ["amount:double"]},
    },
}
VOLATILE_NUMBER = re.compile(
    r"^(size|bytes|\w+_bytes|bytes_used|modificationTime|deletionTimestamp|createdTime|timestamp|seconds|\w+_ms|at|atMs|pid)$"
)
# Where a line differs from run to run: what it is replaced by.
VOLATILE = [
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d(\.\d+)?)?(\+00:00|Z)?"), "<time>"),
    (re.compile(r"\bID:[\w-]+"), "<message id>"),
    (re.compile(r"(m\d+)-[\w-]{16,}(?=\.parquet)"), r"\1-<token>"),
    (re.compile(r"(?<![\w.])1[6-9]\d{11}(\d{3})?(?![\w.])"), "<ms>"),
    (re.compile(r"\b(?!0{8})[0-9a-f]{12,64}\b"), "<id>"),
    (re.compile(rf"\b{re.escape(socket.gethostname())}\b"), "<host>"),
    (re.compile("─+"), "─"),
    (re.compile(r"\b\d\d:\d\d:\d\d\b"), "<time>"),
    (re.compile(r"\b\d{1,3}(,\d{3})+\b"), "<size>"),
    (re.compile(r"\bprocess \d+( of [\w.-]+)?"), "process <pid>"),
    (re.compile(r"\b\d+(\.\d+)? (?:ms|s)\b"), "<duration>"),
    (re.compile(r"\b\d[\d,.]* (?:bytes|KiB|KB|B)\b"), "<bytes>"),
    (re.compile(r"(published-usage/<uuid>/)\d+"), r"\1<number>"),
    (re.compile(r"is <duration> (ahead|behind) .*of the root's"), "is <duration> off the root's"),
]


@pytest.fixture(scope="module")
def domain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One of everything: servers, a quota, messages, claims, positions, a subscription, a transaction, a life-cycle log."""
    root = str(tmp_path_factory.mktemp("golden") / "domain")
    apply(root, MODULE)
    with connect(root, housekeeping=False) as context:
        context.producer("east@orders").send(text="a", properties={"n": 1, "color": "red"}, group_id="unit")
        context.producer("home@orders", producer_id="program").send(text="b", sequence=1)
        context.producer("invoices").send(text="refused", priority=7, correlation_id="c", reply_to="failed", type="t")
        context.consumer("prices", subscription="durable", selector="amount > 1").close()
        context.producer("prices").send(text="2.5", properties={"amount": 2.5})
        with context.consumer("invoices", acknowledge="individual") as consumer:
            received = consumer.receive(timeout=10)
            assert received is not None
            received.reject()
        with context.transacted_session() as session:
            assert session.consumer("home@orders").receive(timeout=10) is not None
            session.producer("failed").send(text="out")
            session.commit()
    with administration.connect(root) as admin:
        admin.pause("failed", "consumption")
        admin.housekeep()
    return root


def plain(value: Any, key: str = "") -> Any:
    """Without what differs from run to run."""
    if isinstance(value, dict):
        return {plain(name): plain(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [plain(one, key) for one in value]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and VOLATILE_NUMBER.search(key):
        return f"<{type(value).__name__}>"
    if isinstance(value, str):
        if (value.startswith("{") and key in ("stats", "schemaString")) or key.startswith("jmsq"):
            with suppress(ValueError):
                return plain(json.loads(value), key)
        return shown(value)
    return shown(str(value)) if isinstance(value, int) and value > 10**12 and not isinstance(value, bool) else value


def shown(text: str) -> str:
    for pattern, kind in VOLATILE:
        text = pattern.sub(kind, text)
    return text


def in_json(document: bytes | str) -> str:
    return json.dumps(plain(json.loads(document)), ensure_ascii=False)


def stored(root: str) -> str:
    """Every file of the domain: JSON as it is, of Parquet the columns, of the store's journal nothing."""
    parts = []
    for path in sorted(Path(root).rglob("*")):
        name = shown(str(path.relative_to(root)))
        if path.is_dir() or "sessions" in path.parts or path.name.startswith("journal"):
            continue
        if path.suffix == ".parquet":
            parts.append(f"{name}: {', '.join(f'{field.name} {field.type}' for field in pq.read_schema(path))}")
            continue
        text = path.read_text()
        try:
            told = in_json(text)
        except ValueError:
            told = "\n".join(in_json(line) if line.startswith("{") else shown(line) for line in text.splitlines())
        parts.append(f"{name}:\n{told}")
    return "\n".join(sorted(parts)) + "\n"


def printed(root: str, command: str) -> str:
    """Of `jmsq`: with --json as JSON; else words, without the widths of columns, which follow their contents."""
    result = CliRunner().invoke(cli, [*command.split(), "--root", root])
    assert result.exit_code == 0, result.output
    text = result.stdout.replace(root, "ROOT")
    if "--json" in command:
        return "\n".join(in_json(line) for line in text.splitlines()) + "\n"
    return "\n".join(re.sub(r" {2,}", "  ", shown(line)).rstrip() for line in text.splitlines()) + "\n"


def figures(root: str) -> str:
    """Of `jmsq metrics`, without the values."""
    lines = printed(root, "metrics --once").splitlines()
    return "\n".join(line if line.startswith("#") else line.rpartition(" ")[0] for line in lines) + "\n"


def console_page(root: str) -> str:
    history = History()
    with connect(root, housekeeping=False) as context:
        history.add(take(domain_of(context), records_of(context)))
    told = re.sub(r"<svg.*?</svg>", "<svg>", page(history, 5.0), flags=re.DOTALL).replace(root, "ROOT")
    return "\n".join(shown(line) for line in re.sub(r"(?<=>)(?=<(?:tr|h2|table|p)\b)", "\n", told).splitlines()) + "\n"


def view_schemas() -> str:
    from spark_jms.spark.browser import VIEW_SCHEMAS

    return "".join(f"{view}: {schema}\n" for view, schema in VIEW_SCHEMAS.items())


LISTS = [
    "list",
    "describe orders",
    "stat",
    "subscriptions",
    "claims",
    "quota list",
    "server list",
    "transactions",
    "acks orders",
]
SHOWN: dict[str, Callable[[str], str]] = {
    "stored": stored,
    "metrics": figures,
    "console": console_page,
    "views": lambda _: view_schemas(),
    **{command: partial(printed, command=command) for one in LISTS for command in (one, f"{one} --json")},
}


@pytest.mark.parametrize("name", SHOWN)
def test_output_is_as_in_its_file(domain: str, name: str) -> None:
    """C14, C16"""
    told = SHOWN[name](domain)
    file = GOLDEN / (re.sub(r"\W+", "-", name).strip("-") + ".txt")
    if os.environ.get("JMSQ_WRITE_GOLDEN"):
        file.write_text(told)
    assert told == file.read_text(), f"if this is meant: JMSQ_WRITE_GOLDEN=1, and look at the difference of {file.name}"
