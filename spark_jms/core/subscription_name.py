"""The server in the name of a subscription of a replicated distributed topic. Pure.

    kept as          its positions in all members are          durable
    -------          ----------------------------------        -------
    east@billing     on the server `east`                      yes
    ~east@billing    on the server `east`                      no
    ~~east@3         on the server `east`                      no
    billing          each on the server of its member          yes; a topic that is not replicated

So `billing` on one server is another subscription than `billing` on another, as it would be on two topics.

Features: D6 (docs/FEATURES.md)
"""

from __future__ import annotations

_NOT_DURABLE, _AT = "~", "@"


def on_server(server: str, name: str) -> str:
    return f"{server}{_AT}{name}"


def server_of_subscription(kept: str) -> str | None:
    """None: its positions are with the members."""
    server, at, _ = kept.lstrip(_NOT_DURABLE).partition(_AT)
    return server if at else None
