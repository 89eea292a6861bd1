"""Queues that are each other's error destination: `apply` warns, since a message goes round for ever (C8, C14)."""

from __future__ import annotations

from typing import Any

import pytest

from spark_jms import apply


def queues(**targets: str | None) -> dict[str, Any]:
    queue = {"kind": "queue"}
    return {"destinations": {n: {**queue, "errorDestination": to} if to else queue for n, to in targets.items()}}


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage().partition(": each is the errorDestination of the one before it")[0]
        for record in caplog.records
    ]


@pytest.mark.parametrize(
    ("targets", "circles"),
    [
        ({"a": "b", "b": "a"}, ["a -> b -> a"]),
        ({"a": "b", "b": "c", "c": "a", "d": "a"}, ["a -> b -> c -> a"]),
        ({"a": "b", "b": "a", "c": "d", "d": "c"}, ["a -> b -> a", "c -> d -> c"]),
        ({"a": "c", "b": "c", "c": "d", "d": None}, []),
    ],
)
def test_each_circle_is_warned_of_once(
    root: str, caplog: pytest.LogCaptureFixture, targets: dict[str, str | None], circles: list[str]
) -> None:
    """C8, C14: by name, at WARNING; a chain that ends is none."""
    apply(root, queues(**targets))
    assert warnings_of(caplog) == circles
    assert {record.levelname for record in caplog.records} <= {"WARNING"}


def test_circle_with_a_queue_of_before_is_found(root: str, caplog: pytest.LogCaptureFixture) -> None:
    """C8, C14: the other half was applied from another file."""
    apply(root, queues(a=None, b="a"))
    assert warnings_of(caplog) == []
    apply(root, queues(a="b"))
    assert warnings_of(caplog) == ["a -> b -> a"]
