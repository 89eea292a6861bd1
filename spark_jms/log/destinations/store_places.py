"""Where the stores of a domain and of its servers are, and what of a store may change after it was created.

Features: C18, S3, S6, R7 (docs/FEATURES.md)
"""

from __future__ import annotations

import os

from spark_jms.core.destinations.servers import HOME
from spark_jms.errors import DomainError
from spark_jms.log.tables.storage import LocalStorage, Storage
from spark_jms.store.errors import shown_uri

DEFAULT_STORE = "file"
_JDBC = ("jdbc:", "sqlite:", "postgresql:")
_ONE_HOST = ("file:", "jdbc:sqlite:", "sqlite:")


def store_uri(root: str, store: str, domain_id: str) -> str:
    """`file` means beside the tables. A database store gets the domain's id, so that no two domains share one."""
    if store == DEFAULT_STORE:
        return f"{root}/_jmsq/store"
    if store.startswith(_JDBC):
        from spark_jms.store.jdbc.settings import with_engine

        return with_engine(store, domain_id)
    return store


def server_store_uri(root: str, server: str, store: str, domain_id: str) -> str:
    """As `store_uri`, for a server's store: no two servers share one."""
    if server == HOME:
        return store_uri(root, store, domain_id)
    if store == DEFAULT_STORE:
        return f"{root}/_jmsq/stores/{server}"
    return store_uri(root, store, f"{domain_id}-{server}")


def check_place(storage: Storage, store: str) -> None:
    """Of a new store, as the module file has it. Raises DomainError."""
    if not isinstance(storage, LocalStorage) and (
        store == DEFAULT_STORE or store.startswith(_ONE_HOST) or "://" not in store
    ):
        raise DomainError(
            f"the root {storage.uri} is an object store, which several hosts can use, but the store {shown_uri(store)!r} serves "
            "one host: name one that serves them all with `store:` in the module file"
        )
    from spark_jms.store.kinds.opening import folder_of

    folder = None if store == DEFAULT_STORE else folder_of(store)
    if folder is not None and isinstance(storage, LocalStorage):
        root = os.path.realpath(storage.root)
        if os.path.commonpath([root, folder]) == root:
            raise DomainError(
                f"the store {shown_uri(store)!r} would be inside the root {storage.uri}, whose folders belong to destinations and are "
                "deleted with them: write `file`, which has a place of its own there, or a path outside of it"
            )


def same_store(one: str, other: str) -> bool:
    """Of the URIs of two stores."""
    return one == other or _identity(one) == _identity(other)


def _identity(uri: str, *, layout: bool = False) -> dict[str, str]:
    """What tells the store from others; `layout`: and what else is fixed since its creation. Of a URI that names no store, itself."""
    from spark_jms.store.errors import StoreError
    from spark_jms.store.kinds.opening import identity_of, layout_of

    try:
        return {**identity_of(uri), **(layout_of(uri) if layout else {})}
    except StoreError:
        return {"uri": uri}


def check_same(known: str, wanted: str, whose: str, advice: str) -> None:
    """Of the URIs of a store as it is known and as the module file has it: options may change, what identifies the store and how its
    tables are laid out may not. Raises DomainError, which names that."""
    before, after = _identity(known, layout=True), _identity(wanted, layout=True)
    changed = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    if changed:
        what = ", ".join(
            f"{name} is {shown_uri(before.get(name, ''))!r}, not {shown_uri(after.get(name, ''))!r}" for name in changed
        )
        raise DomainError(
            f"{whose} keeps its state in the store {shown_uri(known)!r}; it cannot be changed to {shown_uri(wanted)!r} by apply "
            f"({what}): {advice}"
        )
