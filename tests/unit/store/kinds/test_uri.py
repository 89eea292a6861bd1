"""What a store URI may say, and what a store may be called (C9, R15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jms.store import open_store
from spark_jms.store.errors import NameInvalidError, StoreUriError, ValueInvalidError
from spark_jms.store.kinds.opening import administration_of, places_of
from spark_jms.store.regions.client.instance import check_store_name
from spark_jms.store.regions.directory.global_directory import quoted


@pytest.mark.parametrize("query", ["session_timeout_ms=500", "", "store=a&localindex=1"])
@pytest.mark.parametrize("prefix", ["file://{}", "file:{}", "file://localhost{}"])
def test_file_uri_with_options_is_refused(tmp_path: Path, prefix: str, query: str) -> None:
    """C9: as for every other kind; it would make an empty store in a folder of that name."""
    uri = f"{prefix.format(tmp_path / 'store')}?{query}"
    for act in (open_store, places_of):
        with pytest.raises(StoreUriError, match=r"a file store .* has no options"):
            act(uri)
    assert administration_of(uri).check().problems
    assert not list(tmp_path.iterdir())


def test_question_mark_in_a_path_is_quoted(tmp_path: Path) -> None:
    """C9: a folder of such a name is reached by %3F, or by its plain path."""
    path = tmp_path / "what?"
    open_store(str(path)).close()
    open_store(f"file://{tmp_path}/what%3F", create=False).close()


def test_memory_uri_with_options_is_refused() -> None:
    """C9: it would be another store."""
    with pytest.raises(StoreUriError, match="a store in memory has no options"):
        open_store("memory://name?session_timeout_ms=500")


@pytest.mark.parametrize(
    "uri",
    [
        "a\0b",
        "/a\ud800",
        "file:///a%00b",
        "jdbc:sqlite:///a%00b/c.db",
        "jdbc:postgresql://h%00/db",
        "replicated:///a%00b?store=s",
        "replicated:///a?store=%00",
        "memory://\ud800",
    ],
)
def test_characters_that_no_path_can_have_are_refused(uri: str) -> None:
    """C9: they came as the ValueError of a system call, from deep inside."""
    for act in (open_store, places_of):
        with pytest.raises(StoreUriError, match="which no path, host or name can have"):
            act(uri)
    assert administration_of(uri).check().problems


def test_bytes_that_are_not_utf8_are_a_path(tmp_path: Path) -> None:
    """C9: as the system gives it."""
    path = f"{tmp_path}/\udcff"
    open_store(path).close()
    open_store(path, create=False).close()


def test_malformed_replicated_uri_is_refused_by_name() -> None:
    """R15: as one of a database is."""
    for act in (open_store, places_of, administration_of):
        with pytest.raises(StoreUriError, match="not a replicated URI"):
            act("replicated://[::1/x")


@pytest.mark.parametrize("timeout_ms", [None, "5", float("nan"), True])
def test_session_timeout_of_another_type_is_refused_by_name(timeout_ms: object) -> None:
    """C9"""
    with pytest.raises(ValueInvalidError, match="session_timeout_ms is a number of milliseconds"):
        open_store("memory://x", session_timeout_ms=timeout_ms)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["ü" * 36, "a" * 100, "ü" * 20 + "b" * 80, "東" * 24])
def test_longest_names_of_stores_fit_every_file(tmp_path: Path, name: str) -> None:
    """R8, R15: the folder of entries, the lock files, and their temporary names."""
    check_store_name(name)
    (tmp_path / f".{quoted(f'{name}.000')}_client_meta.f.4194304.01234567").touch()


@pytest.mark.parametrize("name", ["", "a" * 101, "ü" * 40, "東" * 25, "a/b", "a.b", "\udcff"])
def test_name_that_no_file_can_have_is_refused(name: str) -> None:
    """R8, R15: at once, and not after the time-out of the open."""
    with pytest.raises(NameInvalidError, match="1 to 100 letters"):
        check_store_name(name)
