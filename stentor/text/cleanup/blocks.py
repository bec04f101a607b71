"""Leave out blocks that nobody wants to be read aloud: code and tables, of Markdown and of HTML.

These steps run only where a request names them, and before all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from stentor.text.draft import PARAGRAPH, STOP, Draft, Writer

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_CODE_TAG = re.compile(r"<(/?)pre(?=[\s>])[^<>]{0,1000}>", re.IGNORECASE)
_TABLE_TAG = re.compile(r"<(/?)table(?=[\s>])[^<>]{0,1000}>", re.IGNORECASE)
"""Tags that begin and end a block. A pattern of the whole block would look for an end from each
beginning."""


@cache
def _block_parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark").enable("table").disable(["code", "inline"])


def without_code(draft: Draft) -> Draft:
    """Without fenced code blocks and `<pre>`. Code inside a sentence stays."""
    if "```" not in draft.text and "~~~" not in draft.text:
        return _without_spans(draft, _tags(draft.text, _CODE_TAG))
    spans = [
        *_markdown_blocks(draft.text, "fence"),
        *_tags(draft.text, _CODE_TAG),
    ]
    return _without_spans(draft, spans)


def without_tables(draft: Draft) -> Draft:
    """Without tables of Markdown and `<table>`."""
    if "|" not in draft.text:
        return _without_spans(draft, _tags(draft.text, _TABLE_TAG))
    spans = [
        *_markdown_blocks(draft.text, "table_open"),
        *_tags(draft.text, _TABLE_TAG),
    ]
    return _without_spans(draft, spans)


def _tags(text: str, pattern: re.Pattern[str]) -> list[tuple[int, int]]:
    """Where blocks between tags begin and end. One that does not end is none."""
    spans = []
    starts: list[int] = []
    for tag in pattern.finditer(text):
        if not tag[1]:
            starts.append(tag.start())
        elif starts:
            spans.append((starts.pop(), tag.end()))
    return spans


def _markdown_blocks(text: str, kind: str) -> Iterator[tuple[int, int]]:
    """Where blocks of a kind begin and end."""
    lines = [0]
    lines += [m.end() for m in re.finditer("\n", text)]
    lines.append(len(text))
    for token in _block_parser().parse(text):
        if token.type == kind and token.map is not None:
            first, last = token.map
            yield lines[first], lines[min(last, len(lines) - 1)]


def _without_spans(draft: Draft, spans: list[tuple[int, int]]) -> Draft:
    """The draft without these places. What is before each ends a paragraph."""
    if not spans:
        return draft
    out = Writer(draft)
    for start, end in sorted(spans):
        if start < out.at:  # inside the one before
            out.skip_to(end)
            continue
        out.keep_to(start)
        out.skip_to(end)
        out.close(STOP, PARAGRAPH)
    return out.done()
