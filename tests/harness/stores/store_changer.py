"""A process that changes one shared record set as fast as it can, and prints the acknowledged changes.

    python -m tests.harness.stores.store_changer URI NAME WRITER SESSION_TIMEOUT_MS

    ready            it is connected
    n NUMBER         acknowledged: the record set has the key WRITER/NUMBER, and its count `n` was raised by one with it
    unknown NUMBER   it cannot tell
    lost ERROR       its session was taken for dead; it connects again

It ends when its stdin ends. The log goes to stderr.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
from collections.abc import Mapping

from spark_jms.store import (
    FencedError,
    OutcomeUnknownError,
    Put,
    RecordView,
    RuleCall,
    RuleResult,
    StoreError,
    open_store,
)
from spark_jms.store.ledger.rules import RULES


def count(argument: bytes, records: Mapping[str, RecordView], sessions: frozenset[str]) -> RuleResult:
    """The rule: one key more for each change, and the count of all changes; the answer is the count."""
    ((name, view),) = records.items()
    counted = str(int(view.objects.get("n", b"0")) + 1).encode()
    return RuleResult({name: [Put("n", counted), Put(argument.decode(), counted)]}, answer=counted)


RULES["count"] = count


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def main(uri: str, name: str, writer: str, session_timeout_ms: str) -> None:
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stopped.set()), daemon=True).start()
    with open_store(uri, session_timeout_ms=int(session_timeout_ms)) as store:
        session, number = store.connect(writer), 0
        say("ready")
        while not stopped.is_set():
            number += 1
            try:
                session.change([name], RuleCall("count", f"{writer}/{number}".encode()))
                say("n", number)
            except OutcomeUnknownError:
                say("unknown", number)
            except FencedError as error:
                say("lost", type(error).__name__)
                session = store.connect(writer)
            except StoreError as error:
                say("refused", type(error).__name__)


if __name__ == "__main__":
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO)
    main(*sys.argv[1:])
