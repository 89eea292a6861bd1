"""C14, C16: the jmsq command on a real root: what it prints, its JSON, its exit codes, what it does to the domain."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_jms import apply, connect
from spark_jms.admin.housekeeping import Rounds
from spark_jms.claims import views
from spark_jms.claims.batches import ConsumerSettings
from spark_jms.claims.subscriber import Subscriber
from spark_jms.cli.main import cli
from spark_jms.core.batch import Batch, Limits
from spark_jms.errors import ConsumerClosedException
from spark_jms.log.domain import Domain

MODULE = {
    "destinations": {
        "orders": {"kind": "distributed-queue", "members": 2},
        "prices": {"kind": "topic"},
        "invoices": {"kind": "queue"},
    }
}
Jmsq = Callable[..., Result]


@pytest.fixture
def domain(root: str) -> str:
    apply(root, MODULE)
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


def lines(result: Result) -> list[Any]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- apply and list -----------------------------------------------------------------------------------------------------
def test_apply_makes_changes_and_refuses(root: str, tmp_path: Path, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    file = tmp_path / "module.yaml"
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 2}\n")
    assert js("apply", str(file)) == [
        {"destination": "orders", "what": "created", "detail": "distributed-queue, 2 member(s)"}
    ]
    assert js("apply", str(file))[0]["what"] == "unchanged"
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 4}\n  prices: {kind: topic}\n")
    changes = js("apply", str(file))
    assert [(c["destination"], c["what"]) for c in changes] == [("orders", "changed"), ("prices", "created")]
    assert changes[0]["detail"] == "members: 2 -> 4"
    # the members that were added have messages: they stay
    with connect(root, housekeeping=False) as context:
        context.producer("orders").send_many({"text": "x"} for _ in range(40))
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 3}\n")
    refused = jmsq("apply", str(file), code=1)
    assert refused.stdout == ""
    assert re.match(r"jmsq: .*member 3 still holds messages.*jmsq purge", refused.stderr)
    error = json.loads(jmsq("apply", str(file), "--json", code=1).stderr)["error"]
    assert error["type"] == "MemberRemovalError"
    # emptied, they go; and the others still have theirs
    assert js("purge", "orders", "--member", "3", "--yes")["dropped"] == 10
    assert js("apply", str(file))[0]["detail"] == "members: 4 -> 3"
    assert js("stat", "orders")["destinations"][0]["backlog"] == 30
    file.write_text("destinations:\n  orders: {kind: distributed-queue, members: 1}\n")
    jmsq("purge", "orders", "--yes")
    assert "was made with 2 members" in jmsq("apply", str(file), code=1).stderr


def test_invalid_module_file_changes_nothing(root: str, tmp_path: Path, jmsq: Jmsq) -> None:
    file = tmp_path / "module.yaml"
    file.write_text("destinations:\n  a: {kind: queue}\n  b: {kind: quue}\n")
    assert jmsq("apply", str(file), code=1).stderr.startswith(f"jmsq: {file}:3: destinations.b.kind is 'quue'")
    assert list(Path(root).iterdir()) == []


def test_list(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    found = {d["name"]: d for d in js("list")}
    assert found["orders"] == {
        "name": "orders",
        "kind": "distributed-queue",
        "members": 2,
        "routing": "round-robin",
        "maxMessageSize": 10 * 2**20,
        "retention": "0",
        "inDoubtTimeout": "1 min",
        "fileGrace": "1 h",
        "acknowledgementRetention": "7 days",
        "durability": "process",
        "subscriptions": [],
        "epoch": 1,
    }
    assert sorted(found) == ["invoices", "orders", "prices"]
    text = jmsq("list").stdout
    assert "distributed-queue" in text
    assert "10.0 MiB" in text


# -- messages -------------------------------------------------------------------------------------------------------------
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


def test_topics_and_their_subscriptions(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "prices", "--text", "before")
    jmsq("receive", "prices", "--subscription", "late", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "after")
    early = lines(
        jmsq("receive", "prices", "--subscription", "early", "--starting-position", "earliest", "--max", "2", "--json")
    )
    assert [m["text"] for m in early] == ["before", "after"]
    assert [m["text"] for m in lines(jmsq("browse", "prices", "--subscription", "late", "--json"))] == ["after"]
    rows = {r["subscription"]: r for r in js("subscriptions", "prices")}
    assert {name: row["backlog"] for name, row in rows.items()} == {"early": 0, "late": 1}
    assert js("subscriptions", "--drop", "prices/late") == {"dropped": "prices/late", "backlog": 1}
    assert [r["subscription"] for r in js("subscriptions", "prices")] == ["early"]
    # a new subscription of the old name starts where the option says
    again = lines(
        jmsq("receive", "prices", "--subscription", "late", "--starting-position", "earliest", "--max", "2", "--json")
    )
    assert [m["text"] for m in again] == ["before", "after"]
    assert "no subscription 'gone'" in jmsq("subscriptions", "--drop", "prices/gone", code=1).stderr
    assert "only a topic" in jmsq("subscriptions", "--drop", "orders/x", code=1).stderr
    assert "DEST/NAME" in jmsq("subscriptions", "--drop", "prices", code=2).stderr


def test_subscription_in_use_is_not_dropped(domain: str, jmsq: Jmsq) -> None:
    with connect(domain, housekeeping=False) as context:
        context.consumer("prices", subscription="billing").receive(0)
        assert (
            "subscription billing of prices is in use by"
            in jmsq("subscriptions", "--drop", "prices/billing", code=1).stderr
        )
    assert "dropped subscription billing" in jmsq("subscriptions", "--drop", "prices/billing").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["send", "orders"], "one of --text, --file and --stdin"),
        (["send", "orders", "--text", "a", "--stdin"], "one of --text, --file and --stdin"),
        (["send", "orders", "--stdin", "--count", "2"], "--count does not go with --stdin"),
        (["send", "orders", "--text", "a", "--binary"], "--binary goes with --file"),
        (["send", "orders", "--text", "a", "-p", "color"], "NAME:TYPE=VALUE"),
        (["send", "orders", "--text", "a", "-p", "n:integer=5"], "TYPE one of string, boolean"),
        (["send", "orders", "--text", "a", "-p", "n:int=five"], "'five' is not of type int (property n)"),
        (["send", "orders", "--text", "a", "-p", "n:byte=128"], "'128' is not of type byte"),
        (["send", "orders", "--text", "a", "-p", "n:boolean=1"], "'1' is not of type boolean"),
        (["send", "orders", "--text", "a", "--priority", "10"], "0<=x<=9"),
        (["send", "orders", "--text", "a", "--delay", "soon"], "not a duration"),
        (["send", "orders", "--text", "a", "--time-to-live", "10"], "10 has no unit: write 10s for seconds"),
        (["receive", "orders", "--timeout", "5"], "5 has no unit: write 5s for seconds"),
        (
            ["browse", "orders", "--selector", "a = 1", "--selector=b = 2"],
            "--selector is given twice: it takes one value",
        ),
        (["browse", "prices", "--all", "--subscription", "x"], "use one of the two"),
        (["stat", "--times", "2"], "--times goes with --watch"),
        (["stat", "--watch", "orders"], "a destination goes before --watch"),
        (["stat", "--watch=10ms"], "at least 50 ms"),
        (["purge", "orders", "--acknowledged-only", "--member", "1"], "leave out --member"),
        (["purge", "prices", "--acknowledged-only", "--subscription", "a"], "leave out --member and --subscription"),
        (["claims", "--dry-run"], "--dry-run goes with --release"),
        (["subscriptions", "--dry-run"], "--dry-run goes with --drop"),
        (["purge", "orders", "--member", "2"], "orders has the members 0 to 1"),
        (["nothing"], "No such command 'nothing'"),
        (["list", "--jsn"], "No such option"),
    ],
)
def test_wrong_usage_exits_with_2_and_one_line(domain: str, jmsq: Jmsq, arguments: list[str], said: str) -> None:
    result = jmsq(*arguments, code=2, input="")
    assert result.stdout == ""
    assert result.stderr.startswith("jmsq: ")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    error = json.loads(jmsq(*arguments, "--json", code=2, input="").stderr)["error"]
    assert said in error["message"]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["send", "nothing", "--text", "a"], "InvalidDestinationError"),
        (["receive", "nothing"], "InvalidDestinationError"),
        (["browse", "nothing", "--all"], "InvalidDestinationError"),
        (["stat", "nothing"], "InvalidDestinationError"),
        (["purge", "nothing", "--yes"], "InvalidDestinationError"),
        (["purge", "orders", "--subscription", "nonsense", "--yes"], "InvalidDestinationError"),
        (["purge", "prices", "--subscription", "nonsense", "--yes"], "InvalidDestinationError"),
        (["purge", "prices", "--subscription", "", "--yes"], "InvalidDestinationError"),
        (["browse", "orders", "--subscription", "nonsense"], "InvalidDestinationError"),
        (["receive", "orders", "--subscription", "nonsense"], "InvalidDestinationError"),
        (["acks", "nothing"], "InvalidDestinationError"),
        (["claims", "nothing"], "InvalidDestinationError"),
        (["housekeep", "nothing", "--once"], "InvalidDestinationError"),
        (["claims", "--release", "abc"], "JmsqError"),
        (["receive", "prices"], "OptionError"),
        (["receive", "orders", "--selector", "color ="], "InvalidSelectorError"),
        (["send", "orders", "--text", "a", "-p", "JMSx=1"], "MessageFormatError"),
        (["apply", "gone.yaml"], "ModuleFileError"),
    ],
)
def test_errors_are_named_and_exit_with_1(domain: str, jmsq: Jmsq, arguments: list[str], kind: str) -> None:
    plain = jmsq(*arguments, code=1)
    assert plain.stdout == ""
    assert plain.stderr.startswith("jmsq: ")
    error = json.loads(jmsq(*arguments, "--json", code=1).stderr)["error"]
    assert error == {"type": kind, "message": plain.stderr.removeprefix("jmsq: ").removesuffix("\n")}


# -- statistics -----------------------------------------------------------------------------------------------------------
def test_stat(domain: str, in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "orders", "--text", "x", "--count", "10")
    document = js("stat")
    assert document["root"] == domain
    stats = {s["destination"]: s for s in document["destinations"]}
    assert [m["last_sequence"] for m in stats["orders"]["members"]] == [5, 5]
    orders, invoices = stats["orders"], stats["invoices"]
    assert (orders["sent"], orders["backlog"], orders["claimed"], orders["files"], orders["version"]) == (
        10,
        10,
        0,
        2,
        1,
    )
    assert orders["oldest"] <= document["time"]
    assert stats["prices"]["oldest"] is None
    assert orders["bytes"] == sum(m["bytes"] for m in orders["members"]) > 0
    assert (invoices["backlog"], invoices["claimed"]) == (3, 3)
    assert stats["prices"]["subscriptions"] == []
    assert [s["destination"] for s in js("stat", "prices", "orders")["destinations"]] == ["prices", "orders"]
    text = jmsq("stat").stdout
    for word in ("Destinations", "Members", "distributed-queue", "backlog", "holder", "version"):
        assert word in text


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
        (["prices"], "prices is a topic: a consumer needs `subscription`"),
        (["invoices", "--starting-position", "latest"], "the starting position is 'latest', but invoices is a queue"),
        (["prices", "--subscription", "s", "--starting-position", '{"at": 1}'], "the starting position of prices is"),
    ],
)
def test_receive_names_no_option_of_another_interface(jmsq: Jmsq, domain: str, words: list[str], says: str) -> None:
    """C6, C10"""
    assert says in jmsq("receive", *words, code=1).stderr


def test_watching_shows_rates(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    from spark_jms.cli import statistics

    monkeypatch.setattr(statistics.time, "sleep", lambda _: jmsq("send", "invoices", "--text", "x"))
    looks = lines(jmsq("stat", "invoices", "--watch=1s", "--times", "3", "--json"))
    assert [look["destinations"][0]["backlog"] for look in looks] == [0, 1, 2]
    assert looks[0]["destinations"][0]["rates"] is None
    assert looks[1]["destinations"][0]["rates"]["sent_per_s"] > 0
    assert "sent/s" in jmsq("stat", "--times", "2", "--watch").stdout


# -- claims ---------------------------------------------------------------------------------------------------------------
def test_claim_in_doubt_is_listed_and_released(in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    (row,) = js("claims")
    assert {
        k: row[k]
        for k in (
            "claim",
            "state",
            "destination",
            "subscription",
            "member",
            "consumer",
            "live",
            "messages",
            "first",
            "last",
        )
    } == {
        "claim": in_doubt,
        "state": "in doubt",
        "destination": "invoices",
        "subscription": "-",
        "member": 0,
        "consumer": "query-1",
        "live": False,
        "messages": 3,
        "first": 1,
        "last": 3,
    }
    assert "not noticed yet" in jmsq("claims", "invoices").stdout
    assert js("claims", "orders") == []
    jmsq("receive", "invoices", "--timeout", "0", code=3)
    assert "not noticed yet" not in jmsq("claims", "invoices").stdout
    assert f"no open claim '{in_doubt}'" in jmsq("claims", "orders", "--release", in_doubt, code=1).stderr
    assert "in doubt" in jmsq("claims", "invoices").stdout
    released = js("claims", "--release", in_doubt)
    assert (released["released"], released["messages"]) == (in_doubt, 3)
    assert js("claims") == []
    again = lines(jmsq("receive", "invoices", "--max", "3", "--json"))
    assert [(m["text"], m["redelivered"], m["delivery_count"]) for m in again] == [(f"m{i}", True, 2) for i in range(3)]
    assert jmsq("claims").stdout == "no message is claimed\n"


def test_release_of_a_live_claim_fences_its_consumer(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "a")
    with connect(domain, housekeeping=False) as context:
        message = context.consumer("invoices").receive(5)
        assert message is not None
        (row,) = js("claims")
        assert (row["state"], row["live"]) == ("live", True)
        assert (
            "1 message(s) of invoices member 0 are available again" in jmsq("claims", "--release", row["claim"]).stdout
        )
        with pytest.raises(ConsumerClosedException):
            message.acknowledge()
    assert js("stat", "invoices")["destinations"][0]["backlog"] == 1


def test_record_that_is_not_handed_over_is_named(domain: str, jmsq: Jmsq) -> None:
    jmsq("send", "invoices", "--text", "a")
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        busy = Subscriber(opened, store, "invoices", "-", "query-1", ConsumerSettings())
        assert busy.next_batch(Batch("query-1"), Limits())
        result = jmsq("purge", "invoices", "--yes", "--wait", "0", code=1)
        assert "invoices/-/0 is held by invoices/- query-1" in result.stderr
        assert "--wait" in result.stderr
        busy.close()


# -- purge ----------------------------------------------------------------------------------------------------------------
def test_purge_drops_the_backlog_but_not_claimed_messages(in_doubt: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "x", "--count", "4")
    assert js("purge", "invoices", "--yes") == {
        "destination": "invoices",
        "dropped": 4,
        "claimed": 3,
        "deleted_messages": 4,
        "deleted_files": 1,
    }
    (stat,) = js("stat", "invoices")["destinations"]
    assert (stat["sent"], stat["backlog"], stat["claimed"], stat["stored_messages"]) == (7, 3, 3, 3)
    acks = js("acks", "invoices")
    assert [(r["consumer"], r["messages"], r["ranges"]) for r in acks["rows"]] == [("jmsq purge", 4, "4-7")]
    assert acks["members"][0]["messages"] == 4
    jmsq("claims", "--release", in_doubt)
    text = jmsq("purge", "invoices", "--yes").stdout
    assert "dropped 3 message(s) of invoices" in text
    assert "deleted 1 file(s)" in text
    jmsq("receive", "invoices", "--timeout", "0", code=3)
    assert [r["messages"] for r in js("acks", "invoices", "--limit", "1")["rows"]] == [3]


def test_purge_asks_for_confirmation(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "orders", "--text", "x", "--count", "6")
    refused = jmsq("purge", "orders", input="n\n", code=1)
    assert "Drop 6 message(s) of orders?" in refused.stderr
    assert refused.stdout == ""
    assert js("stat", "orders")["destinations"][0]["backlog"] == 6
    assert "nothing was done" in jmsq("purge", "orders", input="", code=1).stderr
    assert "Drop 3 message(s) of orders, member 1?" in jmsq("purge", "orders", "--member", "1", input="y\n").stderr
    assert js("stat", "orders")["destinations"][0]["backlog"] == 3


def test_purge_of_acknowledged_messages_drops_nothing(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    jmsq("send", "invoices", "--text", "a")
    jmsq("send", "invoices", "--text", "b")
    jmsq("receive", "invoices")
    assert js("purge", "invoices", "--acknowledged-only") == {
        "destination": "invoices",
        "dropped": 0,
        "claimed": 0,
        "deleted_messages": 1,
        "deleted_files": 1,
    }
    assert [m["text"] for m in lines(jmsq("browse", "invoices", "--all", "--json"))] == ["b"]


def test_purge_of_one_subscription(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    for name in ("a", "b"):
        jmsq("receive", "prices", "--subscription", name, "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "5")
    assert js("purge", "prices", "--subscription", "a", "--yes")["dropped"] == 5
    assert {r["subscription"]: r["backlog"] for r in js("subscriptions", "prices")} == {"a": 0, "b": 5}
    assert js("purge", "prices", "--yes") | {"deleted_files": 1} == {
        "destination": "prices",
        "dropped": 5,
        "claimed": 0,
        "deleted_messages": 5,
        "deleted_files": 1,
    }


def test_purge_refuses_the_subscription_of_a_queue(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C13: and keeps the backlog."""
    jmsq("send", "invoices", "--text", "x", "--count", "5")
    refused = jmsq("purge", "invoices", "--subscription", "nonsense", "--yes", code=1)
    assert refused.stderr == (
        "jmsq: invoices is a queue and has no subscription 'nonsense': leave the subscription out, or name a topic\n"
    )
    assert js("stat", "invoices")["destinations"][0]["backlog"] == 5


# -- dry runs -------------------------------------------------------------------------------------------------------------
def files_of(root: str) -> dict[str, bytes]:
    """Every file of the domain but those of live sessions."""
    return {
        str(path): path.read_bytes() for path in Path(root).rglob("*") if path.is_file() and "session" not in str(path)
    }


def test_dry_run_of_a_purge(in_doubt: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C13, C14: tells exactly what the purge then does."""
    jmsq("send", "invoices", "--text", "x", "--count", "4")
    before = files_of(root)
    promised = js("purge", "invoices", "--dry-run")
    text = jmsq("purge", "invoices", "--dry-run", "--yes").stdout
    kept = js("purge", "invoices", "--acknowledged-only", "--dry-run")
    assert files_of(root) == before
    assert text == (
        "would drop 4 message(s) of invoices\n"
        "would leave 3 message(s) that consumers have claimed (jmsq claims invoices)\n"
        "would delete 1 file(s) with 4 finished message(s)\n"
    )
    assert (kept["dropped"], kept["deleted_files"], kept["dry_run"]) == (0, 0, True)
    assert promised == {**js("purge", "invoices", "--yes"), "dry_run": True}


def test_dry_run_of_a_purge_of_one_subscription(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C13, C14: the file stays for the other subscription."""
    for name in ("a", "b"):
        jmsq("receive", "prices", "--subscription", name, "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x", "--count", "5")
    assert jmsq("purge", "prices", "--subscription", "a", "--member", "0", "--dry-run").stdout == (
        "would drop 5 message(s) of prices, subscription a, member 0\nwould delete 0 file(s) with 0 finished message(s)\n"
    )
    assert js("purge", "prices", "--dry-run")["dropped"] == 10
    assert {r["subscription"]: r["backlog"] for r in js("subscriptions", "prices")} == {"a": 5, "b": 5}


def test_dry_run_of_a_release(in_doubt: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C14, C16"""
    before = files_of(root)
    assert jmsq("claims", "--release", in_doubt, "--dry-run").stdout == (
        f"would release claim {in_doubt} of query-1: 3 message(s) of invoices member 0\n"
    )
    promised = js("claims", "--release", in_doubt, "--dry-run")
    assert files_of(root) == before
    assert (promised["released"], promised["messages"], promised["dry_run"]) == (in_doubt, 3, True)
    released = jmsq("claims", "--release", in_doubt)
    assert released.stderr == f"jmsq: releasing claim {in_doubt} of query-1: 3 message(s) of invoices member 0\n"


def test_dry_run_of_dropping_a_subscription(domain: str, root: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    """C10, C14"""
    jmsq("receive", "prices", "--subscription", "late", "--timeout", "0", code=3)
    jmsq("send", "prices", "--text", "x")
    before = files_of(root)
    what = "subscription late of prices with a backlog of 1 message(s)\n"
    assert jmsq("subscriptions", "--drop", "prices/late", "--dry-run").stdout == f"would drop {what}"
    assert js("subscriptions", "--drop", "prices/late", "--dry-run") == {
        "dropped": "prices/late",
        "backlog": 1,
        "dry_run": True,
    }
    assert files_of(root) == before
    done = jmsq("subscriptions", "--drop", "prices/late")
    assert (done.stderr, done.stdout) == (f"jmsq: dropping {what}", f"dropped {what}")


# -- housekeeping and the rest --------------------------------------------------------------------------------------------
def test_housekeeping_once(domain: str, jmsq: Jmsq, js: Callable[..., Any]) -> None:
    for i in range(9):
        jmsq("send", "invoices", "--text", str(i))
    jmsq("receive", "invoices")
    (done,) = js("housekeep", "invoices", "--once")
    assert (done["busy"], done["purged_messages"], done["compacted_files"]) == (False, 1, 8)
    assert [d["destination"] for d in js("housekeep", "--once")] == ["invoices", "orders", "prices"]
    opened = Domain(domain)
    with views.opened_store(opened) as store:
        other = Rounds(opened, store, clean_up=False)
        other.run(["invoices"])
        assert js("housekeep", "invoices", "--once")[0]["busy"] is True
        other.close()


def test_interrupt_exits_with_130(domain: str, jmsq: Jmsq, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Rounds, "run", interrupted)
    result = jmsq("housekeep", code=130)
    assert result.stderr.strip().splitlines() == ["jmsq: interrupted"]
    error = json.loads(jmsq("housekeep", "--json", code=130).stderr)["error"]
    assert error["type"] == "Interrupted"


def test_the_root(domain: str, root: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments)

    monkeypatch.delenv("JMSQ_ROOT", raising=False)
    missing = run("list")
    assert missing.exit_code == 2
    assert "JMSQ_ROOT" in missing.stderr
    assert run("--root", root, "--json", "list").stdout == run("list", "--json", "--root", root).stdout
    other = run("--root", root, "list", "--root", str(tmp_path / "other"))
    assert other.exit_code == 1
    assert f"{tmp_path}/other is not a spark-jms domain" in other.stderr
    monkeypatch.setenv("JMSQ_ROOT", root)
    assert run("list").exit_code == 0
    assert run("--root", str(tmp_path), "list").exit_code == 1  # what is given wins over the environment


def test_completion(domain: str, root: str, jmsq: Jmsq) -> None:
    for shell in ("zsh", "fish"):
        assert "_JMSQ_COMPLETE" in jmsq("completion", shell).stdout

    def complete(words: str, count: int) -> list[str]:
        environment = {
            "_JMSQ_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            "JMSQ_ROOT": root,
        }
        return CliRunner().invoke(cli, [], env=environment, prog_name="jmsq").stdout.split()

    assert complete("jmsq rec", 1) == ["plain,receive"]
    assert complete("jmsq browse o", 2) == ["plain,orders"]
    assert complete("jmsq stat ", 2) == ["plain,invoices", "plain,orders", "plain,prices"]
    assert complete(f"jmsq --root {root}/gone browse ", 4) == []
