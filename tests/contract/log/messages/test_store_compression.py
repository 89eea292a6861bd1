"""T8: bodies in a destination's files are compressed as it declares."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import spark_jms
from spark_jms.errors import MessageSizeError, ModuleFileError
from spark_jms.log.destinations.domain import Domain
from spark_jms.log.upkeep.compaction import compact
from spark_jms.settings.destination import COMPRESSIONS

CODECS = {
    None: "SNAPPY",
    "GZIP_DEFAULT_COMPRESSION": "GZIP",
    "GZIP_BEST_COMPRESSION": "GZIP",
    "GZIP_BEST_SPEED": "GZIP",
    "LZF": "LZ4",
}
WORDS = [f"word{number}" for number in range(200)]
TEXT = " ".join(random.Random(7).choices(WORDS, k=4000))


def declare(root: str, options: str | None, **more: object) -> None:
    kind = {"storeMessageCompressionEnabled": options is not None, "messageCompressionOptions": options or "LZF"}
    spark_jms.apply(root, {"destinations": {"orders": {"kind": "queue", **kind, **more}}})


def codecs(root: str) -> list[dict[str, str]]:
    """Of each file, by column."""
    log = Domain(root).log("orders")
    found = []
    for path in log.refresh().files:
        group = pq.ParquetFile(Path(log.storage.uri, path)).metadata.row_group(0)
        found.append({c.path_in_schema: c.compression for c in map(group.column, range(group.num_columns))})
    return found


@pytest.mark.parametrize("options", CODECS)
def test_bodies_have_the_codec_and_other_columns_stay_fast(tmp_path: Path, options: str | None) -> None:
    """T8: text and bytes, which are received as they were sent; promoted properties too."""
    root = str(tmp_path)
    declare(root, options, promotedProperties=["amount:double"])
    with spark_jms.connect(root, housekeeping=False) as context:
        context.producer("orders").send(text=TEXT, properties={"amount": 1.5, "color": "red"})
        context.producer("orders").send(body=TEXT.encode())
        for columns in codecs(root):
            assert {name for name, codec in columns.items() if codec != "SNAPPY"} == (
                {"text", "body"} if options else set()
            )
            assert columns["text"] == columns["body"] == CODECS[options]
            assert columns["properties.key_value.value"] == columns["amount"] == "SNAPPY"
        with context.consumer("orders", selector="amount > 1") as consumer:
            message = consumer.receive(10)
            assert message is not None
            assert (message.text, message.properties) == (TEXT, {"amount": 1.5, "color": "red"})
        with context.consumer("orders", selector="amount is null") as consumer:
            message = consumer.receive(10)
            assert message is not None
            assert message.body == TEXT.encode()


def test_sizes_of_the_kinds(tmp_path: Path) -> None:
    """T8: a better level makes smaller files, and each kind smaller ones than Snappy for text of words."""
    sizes = {}
    for options in CODECS:
        root = str(tmp_path / str(options))
        declare(root, options)
        with spark_jms.connect(root, housekeeping=False) as context:
            context.producer("orders").send(text=TEXT)
        (file,) = Domain(root).log("orders").refresh().files.values()
        sizes[options] = file.bytes
    assert sizes["GZIP_BEST_COMPRESSION"] <= sizes["GZIP_DEFAULT_COMPRESSION"] <= sizes["GZIP_BEST_SPEED"] < sizes[None]


def test_compaction_rewrites_bodies_with_the_codec_of_now(tmp_path: Path) -> None:
    """T8, C13: files of several kinds lie side by side until then; sequences and texts stay."""
    root = str(tmp_path)
    texts = []
    declare(root, None)
    with spark_jms.connect(root, housekeeping=False) as context:
        for options in (None, "LZF", "GZIP_BEST_COMPRESSION"):
            declare(root, options)
            for number in range(3):
                texts.append(f"{options} {number}")
                context.producer("orders").send(text=texts[-1])
        assert {columns["text"] for columns in codecs(root)} == {"SNAPPY", "LZ4", "GZIP"}
        assert compact(Domain(root).log("orders")).compacted_files == 9
        assert [columns["text"] for columns in codecs(root)] == ["GZIP"]
        with context.consumer("orders", acknowledge="auto") as consumer:
            assert [message.text for message in consumer.messages(0)] == texts


def test_message_size_counts_what_was_sent(tmp_path: Path) -> None:
    """T8, T17: not what is left of it on the disk."""
    root = str(tmp_path)
    declare(root, "GZIP_BEST_COMPRESSION", maxMessageSize=1000)
    with spark_jms.connect(root, housekeeping=False) as context, pytest.raises(MessageSizeError):
        context.producer("orders").send(body=bytes(1001))


def test_wrong_kind_is_refused(tmp_path: Path) -> None:
    """T8: the texts' four names are known."""
    assert list(COMPRESSIONS) == [name for name in CODECS if name]
    with pytest.raises(ModuleFileError, match="must be one of GZIP_DEFAULT_COMPRESSION, .* LZF"):
        declare(str(tmp_path), "ZIP")


def test_server_compresses_by_default(tmp_path: Path) -> None:
    """T8, D1: the members on it, of destinations that do not compress by themselves; `home` is a server like any other. A change
    concerns what is sent and merged from then on."""
    root = str(tmp_path)

    def applied(**servers: object) -> None:
        plain = {"a": {"store": "file"}, "b": {"store": "file"}, "home": {}}
        own = {"kind": "queue", "storeMessageCompressionEnabled": True, "messageCompressionOptions": "LZF"}
        orders = {"kind": "distributed-queue", "servers": ["a", "b"]}
        destinations = {"orders": orders, "own": own, "plain": {"kind": "queue"}}
        spark_jms.apply(root, {"servers": {**plain, **servers}, "destinations": destinations})

    def sent(name: str) -> dict[str, str]:
        """The codec of the bodies of a message that is sent now."""
        destination = name.partition("@")[2] or name
        log = Domain(root).log(destination)
        before = set(log.refresh().files)
        with spark_jms.connect(root, housekeeping=False) as context:
            context.producer(name).send(text=TEXT)
        (path,) = set(log.refresh().files) - before
        group = pq.ParquetFile(Path(log.storage.uri, path)).metadata.row_group(0)
        return {c.path_in_schema: c.compression for c in map(group.column, range(group.num_columns))}

    applied()
    assert {sent(name)["text"] for name in ("a@orders", "b@orders", "plain")} == {"SNAPPY"}
    gzip = {"storeMessageCompressionEnabled": True}
    applied(a={"store": "file", **gzip}, home={**gzip, "messageCompressionOptions": "GZIP_BEST_SPEED"})
    assert [sent(name)["text"] for name in ("a@orders", "b@orders", "plain", "own")] == [
        "GZIP",
        "SNAPPY",
        "GZIP",
        "LZ4",
    ]
    assert sent("a@orders")["properties.key_value.value"] == "SNAPPY"
    applied()
    assert sent("a@orders")["text"] == sent("plain")["text"] == "SNAPPY"
    assert not Domain(root).log("orders").refresh().destination.compressions
