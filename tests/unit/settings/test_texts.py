"""T18: every name and default of the texts is in the generated reference."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import spark_jms
from spark_jms.cli.__main__ import cli
from spark_jms.client import Context
from spark_jms.client.receiving.consumer import check_mode
from spark_jms.client.transactions.session import TransactedSession
from spark_jms.core.selector import Selector
from spark_jms.errors import InvalidSelectorError, ModuleFileError, OptionError
from spark_jms.module import load_module
from spark_jms.settings.destination import KEYS, TEMPLATE_KEYS, DomainSettings
from spark_jms.settings.document import NAMES, TextName
from spark_jms.settings.environment import Environment
from spark_jms.settings.refused import REFUSED
from spark_jms.settings.store import JdbcOptions, ReplicatedOptions, Thresholds, from_query, from_variables
from spark_jms.settings.table import settings_of
from spark_jms.spark.options import parse_options
from spark_jms.store.errors import SettingInvalidError, StoreUriError
from tests.harness.project import PROJECT

# name in the texts -> the default that they state
TEXTS = {
    # distributed destinations
    "Forward Delay": "disabled",
    "Reset Delivery Count On Forward": "true",
    "Forwarding Policy": "",
    "StoreEnabled": "",
    "weight": "",
    "Load Balancing Enabled": "true",
    "Server Affinity Enabled": "true",
    "Producer Load Balancing Policy": "",
    "Client ID": "",
    "Sharable subscription": "",
    # large messages, compression
    "MessagesMaximum": "",
    "weblogic.MaxMessageSize": "10 MB",
    "Prefetch Mode for Synchronous Consumers": "",
    "Default Compression Threshold": "",
    "Store Message Compression Enabled": "",
    "Paging Message Compression Enabled": "",
    "Message Compression Options": "",
    # paging
    "Paging Directory": "tmp of the server",
    "Message Buffer Size": "a third of the heap, at most 512 MB",
    # quotas
    "Quota": "",
    "Bytes Maximum": "",
    "Messages Maximum": "",
    "Shared": "",
    "Policy": "",
    "Blocking Send Policy": "",
    "Send Timeout": "",
    "MessagesLimitOverride": "-1",
    "SubscriptionMessagesLimit": "-1",
    "SubscriptionLimitDeletedCount": "",
    # flow control
    "Flow Control Enabled": "",
    "Flow Maximum": "",
    "Flow Minimum": "",
    "Flow Interval": "",
    "Flow Steps": "",
    "Bytes Threshold High": "",
    "Bytes Threshold Low": "",
    "Messages Threshold High": "",
    "Messages Threshold Low": "",
    # expiration
    "JMS template": "",
    "Expiration Policy": "",
    "Expiration Logging Policy": "",
    "Error Destination": "",
    "Scan Expiration Interval": "30 s",
    "Message Life Cycle Logging": "",
    # order, send modes, transactions, performance
    "Default Unit-of-Order": "",
    "Unit-of-Order Routing": "",
    "sorted destination": "",
    "One Way Send Mode": "",
    "One Way Send Window Size": "1",
    "Messaging Performance Preference": "25",
    "weblogic.ThreadPoolSize": "5",
    "XA Enabled": "",
    "JTA time-out": "30 s",
    "transacted session time-out": "1 h",
    "MDB transaction batching": "",
    "CLIENT_ACKNOWLEDGE": "",
    "AUTO_ACKNOWLEDGE": "",
    "DUPS_OK_ACKNOWLEDGE": "",
    "MULTICAST_NO_ACKNOWLEDGE": "",
    "XML message selectors": "",
    "IORetryDelaySeconds": "",
    "Production Pause and Resume": "",
    "weblogic.messaging.DisableTopicMultiSender": "",
    "local-jndi-name": "",
    "Messages Maximum per Session": "",
    "LLR (Logging Last Resource)": "",
    "Connection.start": "",
    "Store-and-Forward agents": "",
    "SAF remote context": "",
    "Messaging Bridge": "",
    "Connection factory targets": "",
    "Resource references": "",
    "Dispatch policy, work managers": "",
    "Restart on Failure": "",
    "Maximum message size of a protocol": "",
    # data stores
    "data source": "",
    "SIBOWNER, SIBOWNER0, SIBCLASSMAP, SIBLISTING, SIBXACTS, SIBKEYS, SIBnnn": "",
    "sib.msgstore.jdbcFailoverOnDBConnectionLoss": "true",
    "15 minutes of attempts to get the lock": "15 min",
    "TCP_KEEPIDLE, tcp_keepalive_time, TCP_KEEPALIVE_INTERVAL, KeepAliveTime": "2 h",
    # the replicated store
    "Directory (Global Directory)": "",
    "RegionSize": "",
    "LocalIndex": "0",
    "weblogic.store.replicated.MaximumMessageSizePercent": "1",
    "weblogic.store.replicated.SpaceLoggingStartPercent": "70",
    "weblogic.store.replicated.SpaceLoggingDeltaPercent": "10",
    "weblogic.store.replicated.SpaceOverloadYellowPercent": "80",
    "weblogic.store.replicated.SpaceOverloadRedPercent": "90",
    "rs_daemons.cfg": "",
    "startRSDaemon.sh, stopRSDaemon.sh": "",
    "weblogic.store.Admin (storeadmin)": "",
}
URIS: dict[str, Any] = {"jdbc": JdbcOptions, "replicated": ReplicatedOptions}
SAID = {"disabled": None}  # defaults in words
each_name = pytest.mark.parametrize("row", NAMES, ids=lambda row: row.name)


def test_reference_has_each_name_of_the_texts() -> None:
    """T18: with its default, and what stands for it, or why nothing does."""
    assert {row.name: row.default for row in NAMES} == TEXTS
    page = (PROJECT / "docs/OPTIONS.md").read_text(encoding="utf-8")
    lines = [f"| {row.name} | {row.default or '–'} | {row.shown} |\n" for row in NAMES]
    assert [line for line in lines if line not in page] == [], "run: make options"


@each_name
def test_default_is_that_of_the_texts(row: TextName) -> None:
    """T18: unless the row says why it is another."""
    for _, setting in row.settings:
        if row.default and not row.differs:
            said = SAID[row.default] if row.default in SAID else setting.type.read(row.default)
            assert setting.default == said, f"{setting.name} is {setting.shown_default}, {row.name} {row.default}"


def wrong_value(key: str) -> str:
    """What the parser of this setting says to a value that it never takes. It names the setting, if it knows it."""
    group, name = key.split(".")
    wrong: dict[str, Any] = {name: {"no": "value"}}
    orders: dict[str, Any] = {"kind": "queue"}
    modules: dict[str, dict[str, Any]] = {
        "module": wrong if name in settings_of(DomainSettings) else {"templates": {"t": wrong}},
        "server": {"servers": {"east": {"store": "file", **wrong}}},
        "factory": {"connectionFactories": {"f": wrong}},
        "quota": {"quotas": {"q": wrong}},
    }
    try:
        if group in modules:
            only_of_destinations = group == "module" and name in KEYS.keys() - TEMPLATE_KEYS.keys()
            given = {} if only_of_destinations else modules[group]
            load_module({"destinations": {"orders": {**orders, **(wrong if only_of_destinations else {})}}, **given})
        elif group == "options":
            parse_options({"root": "/r", "destination": "orders", name: "\0"})
        elif group in URIS:
            from_query(URIS[group], f"{name}=not-so!")
        elif group == "thresholds":
            from_variables(Thresholds, {name: "wrong"})
        elif group == "environment":
            return name if name in settings_of(Environment) else ""  # most take any text
    except (ModuleFileError, OptionError, StoreUriError, SettingInvalidError) as error:
        return str(error)
    return ""


@each_name
def test_each_setting_of_the_reference_is_one_that_the_parser_takes(row: TextName) -> None:
    """T18: a row names no setting that does not exist: the parser refuses a wrong value of it, not its name."""
    for key in row.keys:
        said = wrong_value(key)
        assert key.split(".")[1] in said, key
        assert "unknown" not in said, key


@each_name
def test_each_call_and_command_of_the_reference_is_there(row: TextName) -> None:
    """T18: with the arguments that it names."""
    places: tuple[Any, ...] = (spark_jms, Context, TransactedSession)
    for name, given in re.findall(r"`(?:Context\.)?(\w+)\(([^)]*)\)`", row.shown):
        wanted = {argument.split("=")[0].strip() for argument in given.split(",")}
        calls = [getattr(place, name) for place in places if hasattr(place, name)]
        assert any(wanted <= inspect.signature(call).parameters.keys() for call in calls), f"{name}({given})"
    for command in re.findall(r"`jmsq (\w+)[^`]*`", row.shown):
        assert command in cli.commands, command


@each_name
def test_text_row_is_well_formed(row: TextName) -> None:
    assert "|" not in row.name + row.default + row.shown
    assert row.shown
    assert not (row.keys and row.instead)
    assert not row.differs or row.settings


def test_refused_names_are_refused_by_name() -> None:
    """T18: XML selectors, and an acknowledge mode that broadcasts, with the reason."""
    with pytest.raises(
        InvalidSelectorError, match=r"column 7: XML selectors \(JMS_BEA_SELECT\) are refused: a selector reads headers"
    ):
        Selector.parse("a and JMS_BEA_SELECT('xpath', '/order/id/text()') = '7'")
    with pytest.raises(
        OptionError,
        match="acknowledge is 'MULTICAST_NO_ACKNOWLEDGE', but must be one of client, .* because messages are read",
    ):
        check_mode("MULTICAST_NO_ACKNOWLEDGE")
    with pytest.raises(OptionError, match=r"acknowledge is 'never', but must be one of [\w, -]+$"):
        check_mode("never")


@pytest.mark.parametrize("key", [key for one in REFUSED for key in one.keys])
@pytest.mark.parametrize("place", ["destinations", "connectionFactories", "servers", "the file", "Spark"])
def test_name_without_a_counterpart_is_refused_with_its_reason(key: str, place: str) -> None:
    """T18: wherever someone writes it, in any case of its letters."""
    (reason,) = [one.reason for one in REFUSED if key in one.keys]
    said = re.escape(reason.split("[")[0][:60])
    orders: dict[str, Any] = {"kind": "queue"}
    if place == "Spark":
        with pytest.raises(OptionError, match=f"has no option '{key.upper()}' .refused: {said}"):
            parse_options({"root": "/r", "destination": "orders", key.upper(): "true"})
        return
    wrong: dict[str, Any] = {key: True}
    module: dict[str, dict[str, Any]] = {
        "destinations": {"destinations": {"orders": {**orders, **wrong}}},
        "connectionFactories": {"destinations": {"orders": orders}, "connectionFactories": {"f": wrong}},
        "servers": {"destinations": {"orders": orders}, "servers": {"east": {"store": "file", **wrong}}},
        "the file": {"destinations": {"orders": orders}, **wrong},
    }
    with pytest.raises(ModuleFileError, match=f"unknown key '{key}'.*: it is refused: {said}.*; allowed are "):
        load_module(module[place])
