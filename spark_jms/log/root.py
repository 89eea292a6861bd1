"""Opening the root of a domain: which storage a path or URL stands for."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlparse

from spark_jms.errors import DomainError
from spark_jms.log.local_storage import LocalStorage
from spark_jms.log.object_storage import ObjectStorage, advice, without_dump
from spark_jms.settings.extras import MissingExtraError

_OBJECT_STORES = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss", "adl", "https", "http", "memory")


def open_storage(uri: str) -> LocalStorage | ObjectStorage:
    """The storage of a root: a path, file:///path, or an object store's URL. Raises DomainError for anything else."""
    text = str(uri)
    if not text.strip():
        raise DomainError("the root is empty: give a directory or the URL of an object store")
    parsed = urlparse(text)
    if len(parsed.scheme) <= 1:
        return LocalStorage(Path(os.path.abspath(os.path.expanduser(text))))
    if parsed.scheme == "file":
        return LocalStorage(Path(unquote(parsed.path)))
    if parsed.scheme not in _OBJECT_STORES:  # no package would help
        raise DomainError(
            f"the root {text!r} is of no known kind: give a directory, or the URL of an object store (s3://, gs://, az://, https://)"
        )
    try:
        return ObjectStorage(text)
    except MissingExtraError:
        raise
    except Exception as error:  # noqa: BLE001 - obstore raises several kinds, and all mean this
        short = without_dump(error)
        raise DomainError(f"the root {text!r} cannot be opened: {advice(str(short))}") from short
