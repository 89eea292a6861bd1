"""A process that moves messages to and fro until it is killed: python mover.py ROOT SOURCE TARGET. Says `moving` first."""

from __future__ import annotations

import sys

from spark_jms.admin.transfer import MoveOrder, move
from spark_jms.claims.upkeep import move as moving
from spark_jms.errors import MemberUnavailableError
from spark_jms.log.destinations.domain import Domain
from spark_jms.store import open_store


def main() -> None:
    root, source, target = sys.argv[1:]
    moving.BATCH = 20
    domain = Domain(root)
    print("moving", flush=True)
    with open_store(domain.store_uri) as store:
        while True:
            try:
                move(domain, store, MoveOrder(source, target, limit=60), wait_s=1)
            except MemberUnavailableError:
                continue


if __name__ == "__main__":
    main()
