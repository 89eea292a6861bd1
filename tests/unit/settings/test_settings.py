"""The tables of settings: each value is read, stored and shown by one rule, and each bad value is named (C3, C6, C16)."""

from __future__ import annotations

from datetime import timedelta

import attrs
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.errors import ModuleFileError, UnreadableTableError
from spark_jms.module import declare, load_module
from spark_jms.settings.destination import DestinationSettings
from spark_jms.settings.document import GROUPS, Group
from spark_jms.settings.table import Setting, Table, read_texts, setting, settings_of
from spark_jms.settings.types import (
    Choice,
    Duration,
    DurationLike,
    Flag,
    ListOf,
    NotAllowed,
    NumberChoice,
    Size,
    Text,
    ValueType,
    Whole,
    duration_s,
    parse_duration_ms,
    show_duration,
)

TYPES: dict[str, tuple[ValueType, st.SearchStrategy[object], list[str]]] = {
    "whole": (Whole(1, 1024), st.integers(1, 1024), ["0", "1025", "", "x", "1.5", "010", "0x10", "1_0", "1:30", "٣"]),
    "scaled": (Whole(1, 100, "MB", 2**20), st.integers(1, 100).map(lambda n: n << 20), ["0", "101", "1 MB"]),
    "unbounded": (Whole(1), st.integers(1, 2**63 - 1), ["0", "-1", str(2**63), "9" * 5000]),
    "ms": (
        Duration("10 ms", "30 days"),
        st.integers(10, 30 * 86_400_000),
        ["100", "9 ms", "31 days", "soon", "", "-1 s"],
    ),
    "s": (
        Duration("0.1 s", "1 h", "s", "s"),
        st.integers(100, 3_600_000).map(lambda ms: ms / 1000),
        ["0", "3601", "nan", "inf"],
    ),
    "size": (Size("1", "1 GiB"), st.integers(1, 2**30), ["0", "2 GiB", "1.5", "1 MBit", "-1", "", "9" * 5000]),
    "number": (NumberChoice({0: "", 25: ""}), st.sampled_from([0, 25]), ["1", "025", "25.0", "", "x"]),
    "choice": (Choice({"process": "", "power": ""}), st.sampled_from(["process", "power"]), ["Power", "disk", ""]),
    "flag": (Flag(), st.booleans(), ["1", "on", "", "truee"]),
    "text": (Text("a word", r"\w+"), st.text("abc", min_size=1), ["", "a b", "a\n"]),
    "list": (ListOf(Whole(0, 9)), st.lists(st.integers(0, 9)).map(tuple), ["1,x", "10"]),
}
each_type = pytest.mark.parametrize("name", TYPES)


@each_type
@given(data=st.data())
def test_value_survives_show_and_store(name: str, data: st.DataObject) -> None:
    type, values, _ = TYPES[name]
    value = data.draw(values)
    assert type.checked(value) == value
    assert type.read(type.show(value)) == value
    assert type.load(type.store(value)) == value


@each_type
def test_bad_text_is_refused_with_allowed_values(name: str) -> None:
    type, _, bad = TYPES[name]
    for text in bad:
        with pytest.raises(NotAllowed) as caught:
            type.read(text)
        assert caught.value.allowed.startswith(type.allowed)


@each_type
def test_bad_python_value_is_refused(name: str) -> None:
    type = TYPES[name][0]
    for value in (None, object(), [], -1, 1e300, float("nan")):
        with pytest.raises(NotAllowed):
            assert type.checked(value) == value


@given(st.text())
def test_arbitrary_text_is_read_or_refused(text: str) -> None:
    for type, _, _ in TYPES.values():
        try:
            type.checked(type.read(text))
        except NotAllowed as error:
            assert error.allowed  # noqa: PT017


def test_misspelt_choice_gets_a_hint() -> None:
    with pytest.raises(NotAllowed, match=r"one of process, power \(did you mean power\?\)"):
        Choice({"process": "", "power": ""}).read("pover")
    assert Choice({"all": ""}, fold=True).read("ALL") == "all"


# -- durations ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("written", "ms"),
    [
        (timedelta(seconds=1.5), 1500),
        (timedelta(), 0),
        ("1 d", 86_400_000),
        ("5 mins", 300_000),
        ("7 milliseconds", 7),
    ],
)
def test_written_durations(written: object, ms: int) -> None:
    assert parse_duration_ms(written) == ms


def test_negative_timedelta_is_refused() -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(timedelta(seconds=-1))


def test_number_alone_needs_a_setting_that_names_its_unit() -> None:
    assert Duration(high="1 h", bare="ms").read("250") == 250
    assert Duration(high="1 h", unit="s", bare="s").read("250") == 250
    assert Duration(high="1 h", unit="s", bare="s").read("250 ms") == 0.25
    assert Duration(high="1 h").read("0") == 0
    with pytest.raises(NotAllowed, match="written with ms, s, min, h or days, such as '30 s'$"):
        Duration(high="1 h").read("250")


# Settings of the texts, whose numbers have a unit there.
OF_THE_TEXTS = dict.fromkeys(
    ("flowInterval", "forwardDelay", "expirationScanInterval", "transactionTimeout", "databaseTransactionTimeout"), "s"
)


def test_number_alone_has_the_unit_of_the_texts() -> None:
    """T18: as an administrator writes it who has the texts at hand."""
    module = load_module(
        {
            "expirationScanInterval": 5,
            "connectionFactories": {
                "f": {"flowInterval": 60, "transactionTimeout": 7200, "databaseTransactionTimeout": "45 s"}
            },
            "destinations": {"orders": {"kind": "distributed-queue", "members": 2, "forwardDelay": 10}},
        }
    )
    factory = module.factories["f"]
    assert (factory.flow_interval_ms, factory.transaction_timeout_ms) == (60_000, 7_200_000)
    assert factory.database_transaction_timeout_ms == 45_000
    assert module.expiration_scan_interval_ms == 5_000
    assert module.destinations[0].forward_delay_ms == 10_000


@pytest.mark.parametrize("group", GROUPS.values(), ids=lambda group: group.name)
def test_settings_that_take_a_number_alone_name_its_unit(group: Group) -> None:
    for name, row in group.settings.items():
        if isinstance(row.type, Duration):
            suffix = name.lower().rpartition("_")[2]
            assert row.type.bare == OF_THE_TEXTS.get(name, suffix if suffix in ("s", "ms") else ""), name


@pytest.mark.parametrize(("given", "seconds"), [(2, 2.0), (0.25, 0.25), ("250 ms", 0.25), (timedelta(minutes=1), 60.0)])
def test_durations_in_python(given: DurationLike, seconds: float) -> None:
    assert duration_s(given) == seconds


@given(st.integers(0, 36_500 * 86_400_000))
def test_shown_duration_reads_back(ms: int) -> None:
    assert parse_duration_ms(show_duration(ms)) == ms


# -- tables ------------------------------------------------------------------------------------------------------------
@attrs.frozen
class Limits(Table):
    quota_bytes: int = setting("quota", Size("0", "1 GiB"), 2**20, "How much.")
    delay_ms: int | None = setting("delay", Duration(), None, "How long.", without="no delay")


def test_table_lists_its_declarations() -> None:
    rows = settings_of(Limits)
    assert list(rows) == ["quota", "delay"]
    quota = rows["quota"]
    assert (quota.field, quota.default, quota.stored_name, quota.shown_default) == (
        "quota_bytes",
        2**20,
        "quotaBytes",
        "1 MiB",
    )
    assert rows["delay"].shown_default == "no delay"


def test_table_checks_its_values() -> None:
    assert Limits().delay_ms is None
    with pytest.raises(NotAllowed, match="quota is -1"):
        Limits(-1)


def test_bad_text_raises_the_error_of_the_caller() -> None:
    def refuse(row: Setting, text: str, allowed: str) -> Exception:
        return LookupError(f"{row.name}={text!r}: {allowed}")

    assert Limits(**read_texts(Limits, {"quota": "2 KiB", "other": "x"}, refuse)) == Limits(2048)
    with pytest.raises(LookupError, match="delay='soon': a duration, written with ms"):
        read_texts(Limits, {"delay": "soon"}, refuse)


# -- destinations ------------------------------------------------------------------------------------------------------
STORED = {
    "jmsq.formatVersion": "1",
    "jmsq.name": "orders",
    "jmsq.kind": "distributed-queue",
    "jmsq.members": "3",
    "jmsq.routing": "weighted",
    "jmsq.weights": "[1, 2, 3]",
    "jmsq.maxMessageBytes": "1048576",
    "jmsq.retentionMs": "86400000",
    "jmsq.inDoubtTimeoutMs": "30000",
    "jmsq.fileGraceMs": "0",
    "jmsq.acknowledgementRetentionMs": "604800000",
    "jmsq.durability": "power",
    "jmsq.redeliveryLimit": "-1",
    "jmsq.redeliveryDelayMs": "0",
    "jmsq.messagingPerformancePreference": "25",
    "jmsq.storeMessageCompressionEnabled": "false",
    "jmsq.messageCompressionOptions": "GZIP_DEFAULT_COMPRESSION",
    "jmsq.destinationKeys": "[]",
    "jmsq.servers": "[]",
    "jmsq.forwarding": "partitioned",
    "jmsq.storeEnabled": "true",
    "jmsq.unitOfWorkHandlingPolicy": "PassThrough",
    "jmsq.promotedProperties": "[]",
    "jmsq.resetDeliveryCountOnForward": "true",
    "jmsq.unitOfOrderRouting": "hash",
    "jmsq.messagesLimitOverride": "-1",
    "jmsq.bytesThresholdHigh": "-1",
    "jmsq.bytesThresholdLow": "-1",
    "jmsq.messagesThresholdHigh": "-1",
    "jmsq.messagesThresholdLow": "-1",
    "jmsq.messageLoggingEnabled": "false",
    "jmsq.expirationPolicy": "Discard",
    "jmsq.expirationLoggingPolicy": "",
    "jmsq.slotMembers": "2",
    "jmsq.epoch": "4",
    "jmsq.subscriptions": "{}",
    "jmsq.paused": "[]",
}
LATER = (  # tables of earlier versions lack them
    "jmsq.acknowledgementRetentionMs",
    "jmsq.durability",
    "jmsq.redeliveryLimit",
    "jmsq.redeliveryDelayMs",
    "jmsq.messagingPerformancePreference",
    "jmsq.storeMessageCompressionEnabled",
    "jmsq.messageCompressionOptions",
    "jmsq.destinationKeys",
    "jmsq.servers",
    "jmsq.forwarding",
    "jmsq.storeEnabled",
    "jmsq.unitOfWorkHandlingPolicy",
    "jmsq.promotedProperties",
    "jmsq.resetDeliveryCountOnForward",
    "jmsq.unitOfOrderRouting",
    "jmsq.messagesLimitOverride",
    "jmsq.bytesThresholdHigh",
    "jmsq.bytesThresholdLow",
    "jmsq.messagesThresholdHigh",
    "jmsq.messagesThresholdLow",
    "jmsq.messageLoggingEnabled",
    "jmsq.expirationPolicy",
    "jmsq.expirationLoggingPolicy",
    "jmsq.paused",
)
ORDERS = Destination(
    "orders",
    "distributed-queue",
    3,
    "weighted",
    (1, 2, 3),
    2**20,
    86_400_000,
    30_000,
    0,
    durability="power",
    slot_members=2,
    epoch=4,
)


def test_stored_form_is_stable() -> None:
    """C3: format version 1, byte for byte and in this order."""
    assert list(ORDERS.to_configuration().items()) == list(STORED.items())
    assert Destination.from_configuration(STORED, "here") == ORDERS


def test_missing_stored_setting_has_its_default() -> None:
    """C3: tables of earlier versions lack the settings of later ones."""
    read = Destination.from_configuration({k: v for k, v in STORED.items() if k not in LATER}, "here")
    assert read == attrs.evolve(ORDERS, acknowledgement_retention_ms=7 * 86_400_000, durability="process")


@pytest.mark.parametrize("name", ["retentionMs", "inDoubtTimeoutMs", "fileGraceMs", "acknowledgementRetentionMs"])
def test_stored_duration_is_a_whole_number(name: str) -> None:
    """C3: milliseconds; a fraction is damage."""
    with pytest.raises(UnreadableTableError, match="lacks or garbles 1.5"):
        Destination.from_configuration({**STORED, f"jmsq.{name}": "1.5"}, "here")


@pytest.mark.parametrize("name", [name for name in STORED if name != "jmsq.name"])
def test_garbled_stored_setting_is_refused(name: str) -> None:
    with pytest.raises(UnreadableTableError, match="lacks or garbles"):
        Destination.from_configuration({**STORED, name: "{"}, "here")


@pytest.mark.parametrize(
    "name",
    [name.removeprefix("jmsq.") for name in STORED if name not in LATER],
)
def test_missing_mandatory_entry_is_refused(name: str) -> None:
    with pytest.raises(UnreadableTableError, match=f"lacks or garbles '{name}'"):
        Destination.from_configuration({k: v for k, v in STORED.items() if k != f"jmsq.{name}"}, "here")


@pytest.mark.parametrize("row", settings_of(DestinationSettings).values(), ids=lambda row: row.name)
def test_each_key_names_a_bad_value(row: Setting) -> None:
    """C3: in the module file with its key and what is allowed, and in Python with the destination."""
    with pytest.raises(ModuleFileError) as caught:
        load_module({"destinations": {"a": {"kind": "queue", row.name: object()}}})
    assert f"destinations.a.{row.name} is <object" in str(caught.value)
    assert f"but must be {row.type.allowed}" in str(caught.value)
    with pytest.raises(ModuleFileError, match=f"destination a: {row.name} is <object"):
        Destination(**{"name": "a", "kind": "queue", row.field: object()})


@pytest.mark.parametrize("row", settings_of(DestinationSettings).values(), ids=lambda row: row.name)
def test_each_key_is_documented(row: Setting) -> None:
    assert row.doc.endswith(".")
    assert row.doc[0].isupper()
    assert row.since


@given(
    st.integers(1, 2**30),
    st.integers(0, 36_500 * 86_400_000),
    st.integers(0, 30 * 86_400_000),
    st.sampled_from(["process", "power"]),
    st.lists(st.integers(0, 1_000_000), min_size=1, max_size=5).filter(any),
)
def test_destination_survives_yaml_and_metadata(
    size: int, retention: int, doubt: int, durability: str, weights: list[int]
) -> None:
    """C3: YAML → value → metadata → value → YAML; values are written as people write them."""
    rows = settings_of(DestinationSettings)
    written = {
        "kind": "distributed-topic",
        "members": len(weights),
        "routing": "weighted",
        "weights": weights,
        "maxMessageSize": rows["maxMessageSize"].show(size),
        "retention": rows["retention"].show(retention),
        "inDoubtTimeout": rows["inDoubtTimeout"].show(doubt),
        "fileGrace": timedelta(hours=2),
        "durability": durability,
    }
    (made,) = load_module({"destinations": {"a": written}}).destinations
    assert (made.max_message_bytes, made.retention_ms, made.in_doubt_timeout_ms) == (size, retention, doubt)
    assert made.file_grace_ms == 7_200_000
    assert Destination.from_configuration(made.to_configuration(), "here") == made
    (again,) = load_module(yaml.safe_load(yaml.safe_dump({"destinations": {"a": declare(made)}}))).destinations
    assert again == made
