"""C14, C20: `jmsq browse` and `receive` show what cannot be decoded, and its neighbours."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_jms import connect
from spark_jms.client.context.context import Context
from spark_jms.client.messages.encoding import UNDECODABLE_PROPERTY
from spark_jms.core.messages.columns import normalise
from spark_jms.core.messages.compression import compressed
from spark_jms.log.messages.message_writer import MessageWriter
from spark_jms.log.sending.send import send
from spark_jms.testing.inside import domain_of
from tests.contract.claims.failures.test_text_not_utf8 import PLACES, plant
from tests.harness.domains.commands import Jmsq, lines
from tests.unit.core.messages.test_utf8 import text_of


@pytest.fixture
def context(domain: str) -> Iterator[Context]:
    with connect(domain, housekeeping=False) as made:
        yield made


def test_browse_shows_text_that_is_not_utf8(context: Context, jmsq: Jmsq) -> None:
    """C14, C20: wherever it is, as a table and as JSON."""
    for place in PLACES:
        plant(context, "invoices", place)
    shown = lines(jmsq("browse", "invoices", "--json"))
    assert [UNDECODABLE_PROPERTY in m["properties"] for m in shown] == [False, True, False] * len(PLACES)
    assert jmsq("browse", "invoices").stdout.count("not UTF-8") == len(PLACES)


def plant_compressed(context: Context) -> None:
    """A text that is not UTF-8, compressed, between two good ones."""
    log = domain_of(context).log("invoices")
    writer = MessageWriter(log.storage, log.refresh().destination, 0)
    rows = normalise(pa.RecordBatch.from_pydict({"text": ["0", "1", "2"]}), 1, 10**6)
    rows = rows.set_column(rows.schema.names.index("text"), "text", text_of(b"a" * 99, b"b\xff" * 99, b"c" * 99))
    writer.write_normalised(compressed(rows, 10))
    send(log, writer.close(), log.snapshot.route_id)


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_compressed_body_that_cannot_be_read_hides_no_other(context: Context, jmsq: Jmsq, json: list[str]) -> None:
    """C14, C20, T8: it is shown without a body, and with the reason."""
    plant_compressed(context)
    for command in (("browse",), ("receive", "--max", "3")):
        shown = jmsq(*command, "invoices", *json).stdout
        assert [text in shown for text in ("aaaa", UNDECODABLE_PROPERTY, "cccc")] == [True] * 3
    assert jmsq("receive", "invoices", "--timeout", "0", code=3).stdout == ""
