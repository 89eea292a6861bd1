"""The lists of what runs the code blocks of the documentation are whole, and name nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.project import PROJECT
from tests.harness.users.page_blocks import (
    COMMANDS_NOT_RUN,
    COMMANDS_NOT_RUN_ALONE,
    DRAWN,
    ELSEWHERE,
    NOT_RUN,
    RUN,
    all_blocks,
    entry,
    runnable,
)
from tests.harness.users.pages import prints_what_is_promised


def test_every_block_is_run_or_named_with_a_reason() -> None:
    """C11, C14"""
    run = [*runnable(*RUN), *runnable(*RUN, with_spark=True)]
    printed = {block.prints for block in all_blocks() if block.prints is not None}
    left = [
        str(block)
        for block in all_blocks()
        if block not in run
        and block.language not in DRAWN
        and entry(block, ELSEWHERE) is None
        and entry(block, NOT_RUN) is None
        and not (block.language == "text" and block.text in printed)
    ]
    assert left == []


def test_the_lists_name_blocks_and_tests_that_exist() -> None:
    """C11, C14"""
    for table in (ELSEWHERE, NOT_RUN):
        assert set(table) == {entry(block, table) for block in all_blocks()} - {None}
    for (page, _), test in ELSEWHERE.items():
        assert Path(page).stem in (PROJECT / test).read_text(encoding="utf-8"), f"{test} does not run blocks of {page}"
    shell = [command for block in all_blocks() if block.language == "bash" for command in block.commands]
    assert [text for text in COMMANDS_NOT_RUN if not any(text in command for command in shell)] == []
    assert set(COMMANDS_NOT_RUN_ALONE) <= set(shell)


@pytest.mark.parametrize(
    ("printed", "text", "same"),
    [
        ("a  b\n\n", "a b\n", True),
        ("1 ID:x\n2 ID:y\n3 ID:z\n", "1 ID:…\n…\n3 ID:…\n", True),
        ("1 ID:x\n3 ID:z\n", "1 ID:…\n…\n3 ID:…\n", True),
        ("", "", True),
        ("one too many\n", "", False),
        ("a\nc\n", "a\nb\n", False),
        ("", "a\n", False),
    ],
)
def test_what_is_printed_is_compared_with_the_page(printed: str, text: str, same: bool) -> None:
    """`…` stands for anything in a line; alone, for any number of lines."""
    assert prints_what_is_promised(printed, text) == same
