"""C14: `jmsq send`, `browse` and `receive`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spark_jms import apply, connect
from spark_jms.log.destinations.domain import Domain
from tests.harness.domains.commands import Jmsq, lines


def test_send_receive_and_browse(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    sent = js(
        "send",
        "orders",
        "--text",
        "hello",
        "-p",
        "color=red",
        "-p",
        "n:int=5",
        "-p",
        "ok:boolean=true",
        "--group",
        "g",
        "-p",
        "x:double=0.5",
        "--priority",
        "7",
        "--correlation-id",
        "c",
        "--type",
        "t",
        "--reply-to",
        "prices",
    )
    assert sent["sent"] == 1
    browsed = lines(jmsq("browse", "orders", "--selector", "color = 'red' AND n = 5", "--json"))
    assert [m["message_id"] for m in browsed] == [sent["message_id"]]
    received = lines(jmsq("receive", "orders", "--json"))
    assert received[0]["properties"] == {"color": "red", "n": 5, "ok": True, "x": 0.5}
    assert [
        received[0][k] for k in ("text", "group_id", "priority", "correlation_id", "type", "reply_to", "redelivered")
    ] == ["hello", "g", 7, "c", "t", "prices", False]
    assert jmsq("browse", "orders").stdout == "orders is empty\n"
    assert len(lines(jmsq("browse", "orders", "--all", "--json"))) == 1
    nothing = jmsq("receive", "orders", "--timeout", "0", code=3)
    assert (nothing.stdout, nothing.stderr) == ("", "jmsq: no message arrived from orders within 0 s\n")
    assert jmsq("receive", "orders", "--timeout", "0", "--json", code=3).output == ""


def test_sending_many(domain: str, tmp_path: Path, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    assert js("send", "orders", "--text", "x", "--count", "2500") == {
        "destination": "orders",
        "sent": 2500,
        "commits": 3,
    }
    assert js("send", "invoices", "--stdin", input="one\r\n\nthree\nlast") == {
        "destination": "invoices",
        "sent": 4,
        "commits": 2,
    }
    file = tmp_path / "body"
    file.write_bytes(b"\xff\x00")
    assert "--binary" in jmsq("send", "invoices", "--file", str(file), code=2).stderr
    jmsq("send", "invoices", "--file", str(file), "--binary")
    file.write_text("two\nlines")
    jmsq("send", "invoices", "--file", str(file))
    got = lines(jmsq("receive", "invoices", "--max", "0", "--timeout", "0", "--json"))
    assert [m["text"] for m in got] == ["one", "", "three", "last", None, "two\nlines"]
    assert got[4]["body"] == "/wA="
    many = lines(jmsq("receive", "orders", "--max", "0", "--timeout", "0", "--json"))
    assert len({(m["member"], m["sequence"]) for m in many}) == 2500
    assert js("stat", "orders")["destinations"][0]["backlog"] == 0


def test_unacknowledged_messages_are_redelivered_flagged(domain: str, jmsq: Jmsq) -> None:
    jmsq("send", "invoices", "--text", "a")
    assert "redelivered" not in jmsq("receive", "invoices", "--no-ack").stdout
    again = jmsq("receive", "invoices").stdout
    assert "redelivered (delivery 2)" in again
    assert again.endswith("\na\n")


def test_each_text_is_a_message(domain: str, jmsq: Jmsq) -> None:
    """The last one won in silence."""
    jmsq("send", "invoices", "--text", "a", "--text", "b", "--count", "2", "-p", "n:int=1", "-p", "m:int=2")
    got = lines(jmsq("receive", "invoices", "--max", "0", "--timeout", "0", "--json"))
    assert [m["text"] for m in got] == ["a", "b", "a", "b"]
    assert got[0]["properties"] == {"n": 1, "m": 2}


def test_receive_names_lost_messages_and_its_own_option(domain: str, jmsq: Jmsq) -> None:
    """C5: no other interface's option, no representation of an object."""
    jmsq("send", "invoices", "--text", "a", "--text", "b")
    jmsq("send", "invoices", "--text", "c")
    log = Domain(domain).log("invoices")
    log.storage.delete(log.refresh().member_files(0).files[0].path)
    lost = jmsq("receive", "invoices", "--max", "0", "--timeout", "0", code=1).stderr
    assert "invoices, member 0: 2 message(s) are gone (sequence 1-2): purged or deleted" in lost
    assert "`jmsq receive`: --skip-lost" in lost
    assert jmsq("receive", "invoices", "--skip-lost", "--timeout", "5s").stdout.endswith("\nc\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["prices", "--starting-position", "earliest"], "a subscription that is not durable starts with the messages"),
        (["invoices", "--exclusive"], "invoices is a queue: durable and sharing are for a topic's subscription"),
        (["invoices", "--starting-position", "latest"], "the starting position is 'latest', but invoices is a queue"),
        (["prices", "--subscription", "s", "--starting-position", '{"at": 1}'], "the starting position of prices is"),
    ],
)
def test_receive_names_no_option_of_another_interface(jmsq: Jmsq, domain: str, words: list[str], says: str) -> None:
    """C6, C10"""
    assert says in jmsq("receive", *words, code=1).stderr


def test_receive_with_a_client_id(jmsq: Jmsq, domain: str) -> None:
    """C10, C14: the subscription belongs to the id; a restricted one that is in use is refused by name."""
    with connect(domain, housekeeping=False, client_id="app") as context:
        context.consumer("prices", subscription="s").close()
        jmsq("send", "prices", "--text", "x")
        arguments = ["receive", "prices", "--subscription", "s", "--client-id", "app"]
        assert "'app' is in use by another connection" in jmsq(*arguments, code=1).stderr
        assert "no message arrived" in jmsq(*arguments, "--unrestricted", "--timeout", "0", code=3).stderr
    assert "x" in jmsq("browse", "prices", "--subscription", "app:s").stdout
    assert jmsq(*arguments).stdout.endswith("x\n")
    assert "goes with --client-id" in jmsq("receive", "prices", "--unrestricted", code=2).stderr


def test_receive_from_a_subscription_that_is_not_durable(jmsq: Jmsq, domain: str) -> None:
    """C10, C14: it ends with the command; an exclusive one of another process is in the way by name."""
    jmsq("send", "prices", "--text", "before")
    assert "no message arrived" in jmsq("receive", "prices", "--timeout", "0", code=3).stderr
    with (
        connect(domain, housekeeping=False) as context,
        context.consumer("prices", subscription="s", durable=False, sharing="exclusive"),
    ):
        jmsq("send", "prices", "--text", "x")
        shown = json.loads(jmsq("--json", "subscriptions", "prices").stdout)
        assert [(row["subscription"], row["backlog"]) for row in shown] == [("~s", 1)]
        assert "~s" in jmsq("stat", "prices").stdout
        refused = jmsq("receive", "prices", "--subscription", "s", "--non-durable", code=1).stderr
        assert "'~s' has an exclusive consumer already" in refused
        assert "is not durable" in jmsq("subscriptions", "--drop", "prices/~s", code=1).stderr
    assert json.loads(jmsq("--json", "subscriptions", "prices").stdout) == []


def test_lines_of_a_producer_id_are_sent_once(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """M1: a command that is repeated with more input sends the rest."""
    send = ("send", "orders", "--stdin", "--producer-id", "loader")
    assert js(*send, input="a\nb\n") == {"destination": "orders", "sent": 2, "commits": 1, "duplicates": 0}
    assert js(*send, input="a\nb\nc")["duplicates"] == 2
    assert jmsq(*send, input="a\nb\nc\nd\n").stdout == "sent 1 message(s) to orders; 3 line(s) were sent before\n"
    got = lines(jmsq("browse", "orders", "--json"))
    assert sorted(message["text"] for message in got) == ["a", "b", "c", "d"]


def test_send_and_receive_a_unit_of_work(jmsq: Jmsq, domain: str) -> None:
    """T12, C14: all lines are one unit, and a unit counts as one message."""
    units = {"kind": "queue", "unitOfWorkHandlingPolicy": "SingleMessageDelivery"}
    apply(domain, {"destinations": {"units": units}})
    assert "sent 3 message(s)" in jmsq("send", "units", "--stdin", "--unit-of-work", "u", input="a\nb\nc\n").stdout
    jmsq("send", "units", "--text", "d", "--unit-of-work", "v")
    shown = jmsq("receive", "units").stdout.splitlines()
    assert shown[0] == "== unit of work u, 3 message(s)"
    assert shown[2::2] == ["a", "b", "c"]
    assert "incompleteWorkExpirationTime" in jmsq("describe", "units").stdout
    (received,) = lines(jmsq("--json", "receive", "units"))
    assert [part["text"] for part in received["unit_of_work"]] == ["d"]
