"""kill -9 of a consumer: none of its sessions lives any more, on whatever server."""

from __future__ import annotations

from spark_jms.claims.consumers.subscriber import Subscriber
from spark_jms.store import MemoryStore
from spark_jms.store.kinds.routed import DEFAULT, RoutedSession, RoutedStore


def crash(store: RoutedStore, subscriber: Subscriber) -> None:
    sessions = {part.members.session_id for part in subscriber.parts.values()}
    if subscriber._use is not None:
        own = subscriber._use.session
        assert isinstance(own, RoutedSession)
        sessions |= {session.session_id for session in own._sessions.values()}
    for server in (DEFAULT, *store.others()):
        one = store.store(server)
        assert isinstance(one, MemoryStore)
        for session in sessions:
            one._memory.detach(session)
