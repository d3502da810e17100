"""Find sentences in the documents that are too long to be read once, and rows or items joined to those before."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "models/README.md", "models/vedette-nano.md", "deploy/vlm/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
WORDS_MAX = 36
"""Words of a sentence, or of a part of it up to a colon or semicolon: the longest on a page that is an enumeration."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a page in Markdown, with those in lists and table cells, without blocks of code."""
    text = re.sub(r"(?ms)^```.*?^```$|^    .*?$", "", text)
    for line in re.findall(r"(?m)^\s*\|(.*)\|$", text):
        for cell in line.split(" | "):
            yield from _sentences_of(cell)
    text = re.sub(r"(?m)^(\s*\||#).*$", "", text)
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d\.) )", text):
        yield from _sentences_of(re.sub(r"^([-*]|\d\.) ", "", " ".join(block.split())))


def _sentences_of(block: str) -> list[str]:
    """Split a paragraph; code counts as one word, and so does the address of a link as none."""
    block = re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", block))
    return re.split(r"(?<=[.:;!?])[*)\"]*\s+", block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_too_long_to_be_read_once(page: Path) -> None:
    too_long = [each for each in sentences(page.read_text(encoding="utf-8")) if len(each.split()) > WORDS_MAX]
    assert too_long == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_row_of_a_table_has_as_many_cells_as_its_header(page: Path) -> None:
    for table in re.findall(r"(?m)(?:^\|.*\n)+", re.sub(r"`[^`\n]*`", "CODE", page.read_text(encoding="utf-8"))):
        header, *rows = table.splitlines()
        assert [row for row in rows if row.count("|") != header.count("|")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_item_of_a_list_begins_a_line(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$|^    .*?$|^\|.*?$", "", page.read_text(encoding="utf-8"))
    assert re.findall(r"[.;:)] (?:[-*]|[2-9]\.) \S+", text) == []


def test_a_long_sentence_is_found_in_a_paragraph_a_list_and_a_table() -> None:
    long = " ".join(["word"] * (WORDS_MAX + 1))
    page = f"# Title\n\nShort. {long}.\n\n    {long}\n\n- {long}\n- `{long}` is code\n\n| cell | {long} |\n"
    assert [len(each.split()) for each in sentences(page)].count(WORDS_MAX + 1) == 3
