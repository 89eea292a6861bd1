"""T18, C3: templates of the module file: values that several destinations share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jms.core.destinations.destination import Destination
from spark_jms.errors import ModuleFileError
from spark_jms.module import declare, load_module
from spark_jms.settings.destination import TEMPLATE_KEYS
from spark_jms.settings.document import describe
from spark_jms.settings.table import Setting

CAREFUL = {"redeliveryLimit": 3, "redeliveryDelay": "5 s", "errorDestination": "failed"}


def loaded(templates: Any, **destinations: Any) -> dict[str, Destination]:
    module = load_module({"templates": templates, "destinations": destinations})
    return {destination.name: destination for destination in module.destinations}


def test_template_gives_the_values_that_a_destination_leaves_out() -> None:
    """T18: its own values come first, and null is the default."""
    found = loaded(
        {"careful": CAREFUL},
        failed={"kind": "queue"},
        orders={"kind": "queue", "template": "careful"},
        audits={"kind": "queue", "template": "careful", "redeliveryLimit": 10},
        prices={"kind": "topic", "template": "careful", "errorDestination": None},
    )
    seen = {name: (d.redelivery_limit, d.redelivery_delay_ms, d.error_destination) for name, d in found.items()}
    assert seen == {
        "failed": (-1, 0, None),
        "orders": (3, 5000, "failed"),
        "audits": (10, 5000, "failed"),
        "prices": (3, 5000, None),
    }


@given(st.data())
def test_destination_does_not_depend_on_where_its_values_stand(data: st.DataObject) -> None:
    """T18: each key may be in the template, in the destination, or in both with another value in the template."""
    whole = Destination("a", "distributed-queue", 4, "weighted", (1, 2, 3, 4), 2**20, 86_400_000, durability="power")
    other = declare(Destination("a", "queue", retention_ms=1, destination_keys=("JMSPriority descending",)))
    values = declare(whole)
    template, own = {}, {"template": "t"}
    for key, value in values.items():
        where = data.draw(st.sampled_from(["template", "own", "both"]))
        if where != "own":
            template[key] = value if where == "template" else other.get(key, value)
        if where != "template":
            own[key] = value
    (made,) = load_module({"templates": {"t": template}, "destinations": {"a": own}}).destinations
    inherited = template.keys() - own.keys()
    assert made == attrs.evolve(whole, template="t", inherited=frozenset(inherited))
    assert declare(made) == values
    assert Destination.from_configuration(made.to_configuration(), "here") == made
    origins = {row.name: row.origin for row in describe(made)}
    assert {key for key, origin in origins.items() if origin == "template t"} == inherited


@pytest.mark.parametrize("row", TEMPLATE_KEYS.values(), ids=lambda row: row.name)
def test_template_takes_each_key_of_a_destination(row: Setting) -> None:
    """T18: checked where it stands, with the name of the template."""
    with pytest.raises(ModuleFileError) as caught:
        loaded({"t": {row.name: object()}}, a={"kind": "queue"})
    assert f"templates.t.{row.name} is <object" in str(caught.value)


def test_template_serves_queues_and_topics() -> None:
    """T18, T4, D5: what is for another kind of destination does not concern it, and is not shown as the template's."""
    found = loaded(
        {"all": {"messagesLimitOverride": 9, "forwardDelay": 10, "redeliveryLimit": 3}},
        queue={"kind": "queue", "template": "all"},
        members={"kind": "distributed-queue", "members": 2, "template": "all"},
        topic={"kind": "topic", "template": "all"},
        topics={"kind": "distributed-topic", "members": 2, "template": "all"},
    )
    seen = {name: (d.messages_limit_override, d.forward_delay_ms, d.redelivery_limit) for name, d in found.items()}
    assert seen == {
        "queue": (-1, None, 3),
        "members": (-1, 10_000, 3),
        "topic": (9, None, 3),
        "topics": (9, None, 3),
    }
    assert found["queue"].inherited == {"redeliveryLimit"}
    assert found["members"].inherited == {"forwardDelay", "redeliveryLimit"}


def test_template_of_replicated_topics_serves_others() -> None:
    """T18, D6: with its kind in the template, too."""
    module = {
        "servers": {"east": {"store": "file"}},
        "templates": {"t": {"kind": "queue", "forwarding": "replicated", "storeEnabled": False}},
        "destinations": {
            "orders": {"template": "t"},
            "prices": {"template": "t", "kind": "distributed-topic", "servers": ["east"]},
        },
    }
    orders, prices = load_module(module).destinations
    assert (orders.forwarding, orders.store_enabled) == ("partitioned", True)
    assert (prices.forwarding, prices.store_enabled) == ("replicated", False)


@pytest.mark.parametrize("key", ["messagesLimitOverride", "forwardDelay"])
def test_own_value_for_another_kind_is_refused(key: str) -> None:
    """T18, C3: a destination's own one is a mistake, whatever its template has."""
    with pytest.raises(ModuleFileError, match=key):
        loaded({"t": {key: 5}}, a={"kind": "queue", "template": "t", key: 5})


@pytest.mark.parametrize("key", ["messagesLimitOverride", "forwardDelay"])
def test_null_is_the_default_of_a_key_for_another_kind(key: str) -> None:
    """T18, C3: as of every key that the template has."""
    made = loaded({"t": {key: 5}}, a={"kind": "queue", "template": "t", key: None})["a"]
    assert (made.messages_limit_override, made.forward_delay_ms) == (-1, None)


REFUSED: dict[str, tuple[str, int, str]] = {
    "unknown template": (
        "templates: {big: {}}\ndestinations:\n  a: {kind: queue, template: bigg}\n",
        3,
        "destinations.a.template is 'bigg', but must be one of `templates:`: did you mean 'big'? the file has big",
    ),
    "no templates": ("destinations:\n  a: {kind: queue, template: big}\n", 2, "the file has none"),
    "unknown key": ("templates:\n  t:\n    retntion: 1 h\n", 3, "unknown key 'retntion' in templates.t: did you mean"),
    "template of a template": ("templates:\n  t: {template: u}\n", 2, "unknown key 'template' in templates.t"),
    "not a mapping": ("templates:\n  t: big\n", 2, "templates.t is 'big', but must be a mapping"),
    "list": ("templates: [t]\n", 1, "templates is ['t'], but must be a mapping of names to templates"),
    "wrong name": ("templates:\n  a/b: {}\n", 2, "'a/b' cannot be the name of a template"),
    "contradiction": (
        "templates:\n  t:\n    members: 3\ndestinations:\n  a: {kind: queue, template: t}\n",
        3,
        "destinations.a.members is 3, but must be 1, because a queue has one member (a distributed-queue may have up to 1024) "
        "(members is from template t)",
    ),
    "null without a template": ("destinations:\n  a: {kind: queue, retention: null}\n", 2, "a.retention is empty"),
    "null that the template lacks": (
        "templates: {t: {}}\ndestinations:\n  a: {kind: queue, template: t, retention: null}\n",
        3,
        "a.retention is empty",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_template_is_refused(name: str, tmp_path: Path) -> None:
    """C3: with file, line, key and what is allowed."""
    text, line, said = REFUSED[name]
    file = tmp_path / "module.yaml"
    file.write_text(text if "destinations" in text else f"{text}destinations:\n  a: {{kind: queue}}\n")
    with pytest.raises(ModuleFileError) as caught:
        load_module(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert said in str(caught.value)
