"""The options of format("jmsq"): each is read by its declaration, and each wrong one is named (C1, C6, C7)."""

from __future__ import annotations

import pickle
from contextlib import suppress

import pytest

from spark_jms.core.messages.columns import COLUMNS
from spark_jms.errors import OptionError, SparkVersionError
from spark_jms.settings.options import FOREIGN_NAMES, FOREIGN_PREFIXES, OPTIONS, Options
from spark_jms.settings.types import Text, Use
from spark_jms.spark.options import check_spark, check_written, parse_options

GIVEN = {"root": "/data", "destination": "orders"}


def test_the_defaults() -> None:
    """C6"""
    assert parse_options(GIVEN) == Options("/data", "orders", columns=tuple(COLUMNS))
    assert parse_options({**GIVEN, "subscription": "", "txnAppId": ""}).subscription is None


def test_every_option_is_read() -> None:
    """C6, C7: names in any case."""
    options = parse_options(
        {
            "ROOT": "/data",
            "Destination": "orders",
            "subscription": "s",
            "SubscriptionSharing": "EXCLUSIVE",
            "clientId": "app",
            "clientIdPolicy": "Unrestricted",
            "selector": "a = 1",
            "columns": "Text, sequence",
            "view": "ALL",
            "failondataloss": "False",
            "startingPosition": "earliest",
            "maxMessagesPerTrigger": "10",
            "maxBytesPerTrigger": "20",
            "minMessagesPerTrigger": "3",
            "maxTriggerDelay": "2 s",
            "smallBatchMessages": "50",
            "batchPace": "100 ms",
            "inDoubtTimeout": "500 ms",
            "onPoison": "Isolate",
            "forTimers": "true",
            "onUnreadable": "Keep",
            "action": "Expire",
            "idempotentSink": "true",
            "txnAppId": "app",
            "txnVersion": "0",
            "checkpointLocation": "/ck",
            "connectionFactory": "once",
            "loadBalancingEnabled": "true",
            "serverAffinityEnabled": "false",
            "producerLoadBalancingPolicy": "Per-JVM",
            "server": "east",
            "sendTimeout": "30 s",
            "path": "x",
        }
    )
    assert options == Options(
        "/data",
        "orders",
        "x",
        "s",
        "exclusive",
        "app",
        "unrestricted",
        "earliest",
        "a = 1",
        ("text", "sequence"),
        "all",
        False,
        10,
        20,
        3,
        2000,
        50,
        100,
        500,
        "isolate",
        True,
        "app",
        0,
        "/ck",
        "once",
        True,
        False,
        "per-jvm",
        "east",
        30_000,
        True,
        "keep",
        "expire",
    )
    assert pickle.loads(pickle.dumps(options)) == options


def test_root_from_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """C6"""
    monkeypatch.setenv("JMSQ_ROOT", "/elsewhere")
    assert parse_options({"destination": "orders"}).root == "/elsewhere"
    assert parse_options(GIVEN).root == "/data"
    monkeypatch.delenv("JMSQ_ROOT")
    with pytest.raises(OptionError, match=r'needs option\("root", …\) \(or the environment variable JMSQ_ROOT\)'):
        parse_options({"destination": "orders", "root": ""})


def test_missing_destination_is_named() -> None:
    """C6"""
    with pytest.raises(OptionError, match=r'needs option\("destination", …\)$'):
        parse_options({"root": "/data"})


def test_unknown_option_is_named() -> None:
    """C6: the error suggests the option that was meant; options that Spark adds are ignored."""
    with pytest.raises(
        OptionError, match=r"no option 'selecter' \(did you mean 'selector'\?\): accepted are .*columns.*view$"
    ):
        parse_options({**GIVEN, "selecter": "x"})
    with pytest.raises(OptionError, match="no option 'zzz': accepted are .*view$"):
        parse_options({**GIVEN, "zzz": "x"})
    assert parse_options({**GIVEN, "queryName": "q", "spark.x": "y"}) == parse_options(GIVEN)


@pytest.mark.parametrize("use", Use)
@pytest.mark.parametrize("name", OPTIONS)
def test_option_is_refused_where_it_does_not_apply(name: str, use: Use) -> None:
    """C6, C7: by name, before its value is read, and with the uses that have it."""
    row = OPTIONS[name]
    given = {**GIVEN, name.upper(): "no, no"}
    if use in row.used_in:
        with suppress(OptionError):
            parse_options(given, use)
        return
    with pytest.raises(
        OptionError, match=f"^{use.value} does not use option {name}: leave it out \\({name} is for "
    ) as caught:
        parse_options(given, use)
    assert all(other.value in str(caught.value) for other in row.used_in)
    if isinstance(row.type, Text):
        assert parse_options({**GIVEN, name: ""}, use) == parse_options(GIVEN)


def test_options_of_spark_are_accepted_in_each_use() -> None:
    """C1, C6: a path, and the place of a stream's checkpoint."""
    for use in Use:
        assert parse_options({**GIVEN, "path": "x", "queryName": "q", "provider": "jmsq"}, use).path == "x"
    for use in (Use.READ_STREAM, Use.WRITE_STREAM):
        assert parse_options({**GIVEN, "checkpointLocation": "/ck"}, use).checkpoint_location == "/ck"


def test_columns_of_a_write_are_those_of_its_frame() -> None:
    """C1, C6: INSERT through a view with the option has them; a DataFrame has its own."""
    narrow = parse_options({**GIVEN, "columns": "text,JMSType"}, Use.WRITE)
    check_written(narrow, ["text", "JMSType"])
    check_written(parse_options(GIVEN, Use.WRITE), ["text"])
    with pytest.raises(OptionError, match="columns is 'text,JMSType', but the columns to write are 'text'"):
        check_written(narrow, ["text"])


def test_options_of_kafka_get_the_names_they_have_here() -> None:
    """C6: all of them at once."""
    kafka = {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "1000",
        "kafka.group.id": "billing",
    }
    with pytest.raises(OptionError) as caught:
        parse_options(kafka)
    assert str(caught.value).startswith(
        "format(\"jmsq\") has no option 'kafka.bootstrap.servers' (did you mean 'root'?), "
        "'subscribe' (did you mean 'destination'?), 'startingOffsets' (did you mean 'startingPosition'?), "
        "'maxOffsetsPerTrigger' (did you mean 'maxMessagesPerTrigger'?), "
        "'kafka.group.id' (did you mean 'subscription'?): accepted are action, batchPace, checkpointLocation, clientId, "
        "clientIdPolicy, columns, connectionFactory, destination"
    )


def test_each_foreign_name_means_an_option() -> None:
    """C6"""
    assert {*FOREIGN_NAMES.values(), *FOREIGN_PREFIXES.values()} <= set(OPTIONS)
    assert not set(FOREIGN_NAMES) & {name.lower() for name in OPTIONS}


@pytest.mark.parametrize("name", [name for name, row in OPTIONS.items() if not isinstance(row.type, Text)])
def test_bad_value_is_named(name: str) -> None:
    """C6"""
    with pytest.raises(
        OptionError, match=f"option {name} is 'no, no', but must be (a|0 to)|option {name} is .* one of|true or"
    ):
        parse_options({**GIVEN, name: "no, no"})


@pytest.mark.parametrize("columns", ["", ",", "nope", "text,TEXT"])
def test_columns_must_be_distinct_message_columns(columns: str) -> None:
    """C7"""
    with pytest.raises(OptionError, match="list of different message columns out of: "):
        parse_options({**GIVEN, "columns": columns})


@pytest.mark.parametrize("version", ["3.5.6", "4.0.5", "4.1.4", "4.1.0.dev1"])
def test_an_older_pyspark_is_named(version: str) -> None:
    """C1: with the version that runs and what to do, in place of a module that is missing."""
    with pytest.raises(SparkVersionError, match=f"needs PySpark 4.2 or newer, and {version} runs: .* Upgrade it"):
        check_spark(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "4.10.1", "5.0.0.dev0", "4.2"])
def test_newer_pysparks_are_not_refused(version: str) -> None:
    """C1"""
    check_spark(version)
