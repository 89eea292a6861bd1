from __future__ import annotations

import json
from pathlib import Path

import pytest

from spark_jms.setup.machine import DeltaJarsCorruptError, DeltaJarsMissingError, DeltaJarsResolveError
from spark_jms.setup.session import (
    artifact_of,
    cache_dir,
    delta_jars,
    ensure_delta_jars,
    jar_dir,
    read_manifest,
    store_jars,
    without_sparks_own,
)
from tests.harness.project import PROJECT


def resolver(*names: str):  # type: ignore[no-untyped-def]
    def resolve(scratch: Path) -> list[Path]:
        paths = [scratch / name for name in names]
        for path in paths:
            path.write_bytes(path.name.encode() * 100)
        return paths

    return resolve


def refuse(scratch: Path) -> list[Path]:
    raise AssertionError("nothing was to be fetched")


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "jars").iterdir() if path != jar_dir(cache)]


def test_fetched_once_and_used_from_then_on(tmp_path: Path) -> None:
    jars, fetched = ensure_delta_jars(tmp_path, resolver("b-1.jar", "a-1.jar"))
    assert fetched
    assert [Path(jar).name for jar in jars] == ["a-1.jar", "b-1.jar"]
    assert all(Path(jar).is_file() for jar in jars)
    assert ensure_delta_jars(tmp_path, refuse) == (jars, False)
    assert delta_jars(tmp_path, verify=True) == jars
    assert leftovers(tmp_path) == []


def test_nothing_fetched_yet_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DeltaJarsMissingError, match=r"Run: .* -m spark_jms\.setup jars"):
        delta_jars(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "changed", "gone"])
def test_a_damaged_jar_is_found_and_mended(tmp_path: Path, damage: str) -> None:
    jars, _ = ensure_delta_jars(tmp_path, resolver("a-1.jar", "b-1.jar"))
    jar = Path(jars[1])
    if damage == "cut":
        jar.write_bytes(jar.read_bytes()[:-1])
    elif damage == "changed":
        jar.write_bytes(b"x" * jar.stat().st_size)
    else:
        jar.unlink()
    with pytest.raises(DeltaJarsCorruptError, match=r"b-1\.jar differs"):
        delta_jars(tmp_path, verify=True)
    assert ensure_delta_jars(tmp_path, resolver("a-1.jar", "b-1.jar")) == (jars, True)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("text", ["", "{", "[]", '{"jars": []}', '{"jars": [{"name": "a"}]}', '{"jars": 1}'])
def test_a_manifest_that_is_none_is_refused_by_name(tmp_path: Path, text: str) -> None:
    ensure_delta_jars(tmp_path, resolver("a-1.jar"))
    (jar_dir(tmp_path) / "manifest.json").write_text(text)
    with pytest.raises(DeltaJarsCorruptError):
        delta_jars(tmp_path)
    assert ensure_delta_jars(tmp_path, resolver("a-1.jar"))[1]


def test_a_failed_fetch_leaves_nothing(tmp_path: Path) -> None:
    def resolve(scratch: Path) -> list[Path]:
        raise DeltaJarsResolveError("no network")

    with pytest.raises(DeltaJarsResolveError, match="no network"):
        ensure_delta_jars(tmp_path, resolve)
    assert not jar_dir(tmp_path).exists()
    assert leftovers(tmp_path) == []


def test_a_copy_cut_short_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ensure_delta_jars(tmp_path, lambda scratch: [scratch / "missing-1.jar"])
    assert not jar_dir(tmp_path).exists()
    assert leftovers(tmp_path) == []


def test_of_two_set_ups_at_once_the_first_stays(tmp_path: Path) -> None:
    source = tmp_path / "a-1.jar"
    source.write_bytes(b"one")
    directory = jar_dir(tmp_path)
    directory.parent.mkdir()
    store_jars([source], directory)
    before = (directory / "a-1.jar").stat().st_ino
    store_jars([source], directory)
    assert (directory / "a-1.jar").stat().st_ino == before
    assert leftovers(tmp_path) == []


def test_the_manifest_tells_size_and_checksum(tmp_path: Path) -> None:
    ensure_delta_jars(tmp_path, resolver("a-1.jar"))
    (jar,) = read_manifest(jar_dir(tmp_path))
    assert (jar.name, jar.size_bytes, len(jar.sha256)) == ("a-1.jar", 700, 64)
    assert "delta-spark" in json.loads((jar_dir(tmp_path) / "manifest.json").read_text())["coordinate"]


@pytest.mark.parametrize(
    ("file_name", "artifact"),
    [
        ("delta-storage-4.4.0.jar", "delta-storage"),
        ("delta-spark_4.2_2.13-4.4.0.jar", "delta-spark_4.2_2.13"),
        ("log4j-slf4j2-impl-2.25.3.jar", "log4j-slf4j2-impl"),
        ("zstd-jni-1.5.7-3.jar", "zstd-jni"),
        ("RoaringBitmap-0.9.25.jar", "RoaringBitmap"),
        ("nameless.jar", "nameless"),
    ],
)
def test_artifact_of(file_name: str, artifact: str) -> None:
    assert artifact_of(file_name) == artifact


def test_what_spark_ships_is_left_out() -> None:
    fetched = [Path("io.delta_delta-storage-4.4.0.jar"), Path("org.slf4j_slf4j-api-2.0.13.jar")]
    assert without_sparks_own(fetched, ["slf4j-api-2.0.17.jar", "spark-core_2.13-4.2.0.jar"]) == fetched[:1]


def test_the_cache_is_named_or_in_the_clone(tmp_path: Path) -> None:
    assert cache_dir({"JMSQ_CACHE": str(tmp_path)}) == tmp_path
    assert cache_dir({}) == PROJECT / ".cache"
