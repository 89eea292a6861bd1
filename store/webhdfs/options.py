"""What a namespace is opened with, and its figures."""

from __future__ import annotations

from dataclasses import dataclass

from spark_jms.store.regions.client.objects import ConnectionStatistics

DEFAULT_FILE_BLOCK_BYTES = 128 * 1024 * 1024  # what clients are told; the block objects of the store are smaller


@dataclass(frozen=True)
class FilesOptions:
    """`capacity_bytes` is the capacity that GETSTATUS reports; 0 means unknown.

    Contents of at most `inline_bytes` are kept in the journal while all of them together stay within
    `inline_budget_bytes`. A snapshot is due after `snapshot_batches`, `snapshot_journal_bytes` or
    `snapshot_block_bytes`: that is how much a recovery reads."""

    owner: str = "hdfs"
    group: str = "supergroup"
    capacity_bytes: int = 0
    block_bytes: int = 1024 * 1024
    inline_bytes: int = 1024
    inline_budget_bytes: int = 16 * 1024 * 1024
    merge_bytes: int = 64 * 1024  # an append rewrites a last extent up to this size, so extents stay few
    snapshot_batches: int = 1024
    snapshot_journal_bytes: int = 8 * 1024 * 1024
    snapshot_block_bytes: int = 256 * 1024 * 1024
    max_writers: int = 256
    refused_retries: int = 100  # of a journal write that the store refuses for now (one copy left, full)
    refused_retry_ms: int = 100


@dataclass(frozen=True)
class FilesStatistics:
    """Counts since the namespace was opened; `journal_batches`, `journal_bytes` and `inline_bytes` as of now."""

    mutation_count: int
    journal_write_count: int  # mutation_count / journal_write_count is how well mutations share writes
    journal_batches: int
    journal_bytes: int
    snapshot_count: int
    inline_bytes: int
    read_bytes: int
    written_bytes: int
    open_writers: int
    open_readers: int
    garbage_swept: int
    connection: ConnectionStatistics
