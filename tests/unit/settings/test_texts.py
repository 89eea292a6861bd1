"""T18: every name and default of the texts on tuning and on distributed destinations is in the generated reference."""

from __future__ import annotations

import pytest

from spark_jms.client.receiving.consumer import check_mode
from spark_jms.core.selector import Selector
from spark_jms.errors import InvalidSelectorError, OptionError
from spark_jms.settings.document import GROUPS, NAMES, NOT_YET, TextName
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
}
SAID = {"disabled": None}  # defaults in words
each_name = pytest.mark.parametrize("row", NAMES, ids=lambda row: row.name)


def test_reference_has_each_name_of_the_texts() -> None:
    """T18: with its default, and what stands for it, or `not yet`."""
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


@each_name
def test_setting_that_is_there_is_found(row: TextName) -> None:
    """T18: a name is not shown as `not yet` while a setting of that name is there, perhaps in another place."""
    if row.shown == NOT_YET:
        wanted = {key.split(".")[1] for key in row.keys}
        there = {f"{group.name}.{name}" for group in GROUPS.values() for name in wanted & group.settings.keys()}
        assert there <= {key for other in NAMES for key in other.keys}


@each_name
def test_text_row_is_well_formed(row: TextName) -> None:
    assert "|" not in row.name + row.default + row.shown
    assert not row.differs or row.settings


def test_refused_names_are_refused_by_name() -> None:
    """T18: XML selectors, and an acknowledge mode that broadcasts."""
    with pytest.raises(
        InvalidSelectorError, match=r"column 7: XML selectors \(JMS_BEA_SELECT\) are refused: a selector reads headers"
    ):
        Selector.parse("a and JMS_BEA_SELECT('xpath', '/order/id/text()') = '7'")
    with pytest.raises(OptionError, match="acknowledge is 'MULTICAST_NO_ACKNOWLEDGE', but must be one of client, "):
        check_mode("MULTICAST_NO_ACKNOWLEDGE")
