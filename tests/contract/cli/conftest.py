"""The command on the root of a test: a domain with destinations, a claim in doubt, and the command as a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_jms import apply, connect
from spark_jms.claims.batches.batch import ConsumerSettings
from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.claims.upkeep import views
from spark_jms.cli.__main__ import cli
from spark_jms.core.records.batch import Batch, Limits
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import MODULE, ON_SERVERS, Jmsq


@pytest.fixture
def domain(root: str) -> str:
    apply(root, MODULE)
    return root


@pytest.fixture
def servers(root: str) -> str:
    """A domain on the servers a and b."""
    apply(root, ON_SERVERS)
    return root


@pytest.fixture
def jmsq(root: str) -> Jmsq:
    """Runs a command on the root and checks its exit code."""

    def run(*arguments: str, code: int = 0, input: str | bytes | None = None) -> Result:
        result = CliRunner().invoke(cli, [*arguments, "--root", root], input=input)
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        assert "\x1b" not in result.output, "ANSI codes for what is no terminal"
        return result

    return run


@pytest.fixture
def js(jmsq: Jmsq) -> Callable[..., Any]:
    def run(*arguments: str, **more: Any) -> Any:
        return json.loads(jmsq(*arguments, "--json", **more).stdout)

    return run


@pytest.fixture
def in_doubt(domain: str) -> Iterator[str]:
    """A claim of 3 messages in doubt: its consumer is dead and may restart."""
    with connect(domain, housekeeping=False) as context:
        context.producer("invoices").send_many({"text": f"m{i}"} for i in range(3))
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        subscriber = Subscriber(opened, store, "invoices", "-", "query-1", ConsumerSettings())
        batch = subscriber.next_batch(Batch("query-1"), Limits())
        assert batch is not None
        subscriber.close()
        yield batch.claim
