"""A connection's claim to a restricted client id, for life.

Features: C10 (docs/FEATURES.md)
"""

from __future__ import annotations

import time

from spark_jms.core.client_identity import ClientIdentity
from spark_jms.core.record_names import client_record
from spark_jms.errors import InvalidClientIDException
from spark_jms.store import RecordHeldError, Session, Store

_STEP_MS = 250


def claim_client_id(store: Store, identity: ClientIdentity, *, wait_s: float = 0.0) -> Session | None:
    """The session that has the client id until it is closed or dies; None where any number may have it. While another
    connection has it, waits up to `wait_s`, then raises InvalidClientIDException."""
    if not identity.is_restricted:
        return None
    assert identity.client_id is not None
    record, deadline = client_record(identity.client_id), time.monotonic() + wait_s
    session = store.connect(f"client {identity.client_id}")
    try:
        while True:
            left_ms = max(int((deadline - time.monotonic()) * 1000), 0)
            try:
                session.open(record, timeout_ms=min(left_ms, _STEP_MS))
                return session
            except RecordHeldError as error:
                if left_ms == 0:
                    raise InvalidClientIDException(
                        f"the client id {identity.client_id!r} is in use by another connection (session {error.holder}): close "
                        "that one, take another id, or let both be unrestricted"
                    ) from error
    except BaseException:
        session.close()
        raise
