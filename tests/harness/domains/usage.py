"""A domain whose usage is recorded, and how its messages end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from spark_jms import apply, connect
from spark_jms.admin.purge import drop_backlog
from spark_jms.admin.services import Rounds
from spark_jms.client.context.context import Context
from spark_jms.store import MemoryStore
from spark_jms.testing import wait_until
from spark_jms.testing.inside import domain_of, records_of

SMALL = {"kind": "queue", "quota": "small"}
NAMES = ("orders", "news", "limited")


@contextmanager
def usage_domain(tmp_path: Path) -> Iterator[Context]:
    """A queue with the quota `small`, a topic, and a topic with a limit, on a store of its own."""
    store = f"usage-{tmp_path.name}"
    destinations = {
        "orders": SMALL,
        "news": {"kind": "topic", "retention": "1 h"},
        "limited": {"kind": "topic", "messagesLimitOverride": 2},
    }
    quotas = {"small": {"messagesMaximum": 1000}}
    apply(str(tmp_path), {"store": f"memory://{store}", "quotas": quotas, "destinations": destinations})
    with connect(str(tmp_path), housekeeping=False) as made:
        yield made
    MemoryStore.forget(store)


def expire(context: Context, name: str, count: int) -> None:
    context.producer(name).send_many({"text": f"{n}", "time_to_live": "1 ms"} for n in range(count))
    done: list[int] = []
    rounds = Rounds(domain_of(context), records_of(context), clean_up=True)
    wait_until(lambda: sum(done) == count or done.append(rounds.run([name])[0].expired_messages), 10)
    rounds.close()


def drop(context: Context, name: str, subscription: str | None = None) -> int:
    return drop_backlog(domain_of(context), records_of(context), name, subscription, [0], 0).dropped
