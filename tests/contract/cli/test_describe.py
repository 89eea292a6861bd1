"""C14, C16: `jmsq describe` shows the settings of destinations and every setting there is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_jms import apply
from spark_jms.cli.__main__ import cli
from spark_jms.settings.destination import KEYS
from spark_jms.settings.document import GROUPS


@pytest.fixture
def domain(root: str) -> str:
    orders = {"kind": "distributed-queue", "members": 2, "retention": "1 day", "fileGrace": "1 h"}
    apply(root, {"destinations": {"orders": orders, "prices": {"kind": "topic"}}})
    return root


def run(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == code, (result.output, result.exception)
    return result


def lines(*arguments: str) -> list[list[str]]:
    return [line.split() for line in run(*arguments).stdout.splitlines() if line.strip()]


def test_describe_shows_a_destination(domain: str) -> None:
    """C14, C16: each value in effect, where it came from, and the default where it is another one."""
    shown = lines("describe", "orders", "--root", domain)
    assert shown[0] == ["orders"]
    assert ["retention", "1", "day", "module", "file", "0"] in shown
    assert ["fileGrace", "1", "h", "default", "–"] in shown
    assert ["members", "2", "module", "file", "1"] in shown
    assert ["template", "none", "default", "–"] in shown
    assert [line[0] for line in shown[-len(KEYS) :]] == list(KEYS)


def test_describe_names_the_template_of_a_value(root: str) -> None:
    """T18: also when only the origin of a value changes."""
    templates = {"long": {"retention": "1 day", "members": 2}}
    orders = {"kind": "distributed-queue", "template": "long", "members": 3}
    apply(root, {"templates": templates, "destinations": {"orders": orders}})
    shown = lines("describe", "orders", "--root", root)
    assert ["retention", "1", "day", "template", "long", "0"] in shown
    assert ["members", "3", "module", "file", "1"] in shown
    (change,) = apply(root, {"templates": templates, "destinations": {"orders": {**orders, "retention": "1 day"}}})
    assert (change.what, change.detail) == ("changed", "the same values, others of them from the template")
    assert ["retention", "1", "day", "module", "file", "0"] in lines("describe", "orders", "--root", root)
    (change,) = apply(root, {"destinations": {"orders": {"kind": "distributed-queue", "members": 3}}})
    assert change.what == "changed"
    described: Any = json.loads(run("describe", "--root", root, "--json").stdout)
    assert {row["origin"] for row in described[0]["settings"]} == {"module file", "default"}


def test_describe_fits_a_terminal(domain: str) -> None:
    """C14: no line of a destination is wider than 120 characters."""
    assert max(map(len, run("describe", "orders", "--root", domain).stdout.rstrip().splitlines())) <= 120


def test_describe_as_json(domain: str) -> None:
    """C14"""
    described: Any = json.loads(run("describe", "--root", domain, "--json").stdout)
    assert [d["name"] for d in described] == ["orders", "prices"]
    orders = {row["name"]: row for row in described[0]["settings"]}
    assert (described[0]["epoch"], described[0]["subscriptions"]) == (1, [])
    assert orders["retention"] == {
        "group": "module",
        "name": "retention",
        "value": 86_400_000,
        "shown": "1 day",
        "default": 0,
        "unit": "ms",
        "range": "0 to 36,500 days",
        "since": "0.1",
        "origin": "module file",
        "doc": KEYS["retention"].doc,
    }
    assert (orders["kind"]["default"], orders["kind"]["value"]) == (None, "distributed-queue")
    assert orders["durability"]["origin"] == "default"


def test_describe_lists_every_setting() -> None:
    """C14: without a domain."""
    every = json.loads(run("describe", "--settings", "--json").stdout)
    assert [(row["group"], row["name"]) for row in every] == [(g.name, n) for g in GROUPS.values() for n in g.settings]
    shown = lines("describe", "--settings")
    assert {row["name"] for row in every} <= {line[0] for line in shown}


def test_describe_refuses_wrong_usage(domain: str) -> None:
    """C14"""
    assert "leave out DEST" in run("describe", "orders", "--settings", code=2).stderr
    assert "there is no destination 'nowhere'" in run("describe", "nowhere", "--root", domain, code=1).stderr
