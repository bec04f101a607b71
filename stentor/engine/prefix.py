"""What a prompt has in common with others: keys of its pages, and the part of it that a prefill computes.

Keys and values of a position depend on what stands there and before it, on the request's adapter, and on nothing else
of the request. So requests with the same voice, pieces of a long text and resumed requests find the pages of what they
have in common.
This is automatic prefix caching as in vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
import struct
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stentor.models.base import Prompt
    from stentor.models.sparse_rows import SparseRows


def prefix_keys(prompt: Prompt, page_size: int, known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """A key for each full page of the prompt, of its tokens and given frames, of all pages before it, and of the
    adapter's weights (not of its number, which another gets).

    known: the keys of its first pages.
    """
    digests = frame_digests(prompt, page_size, len(known))
    return chained(known, page_contents(prompt, page_size, digests, len(known)), adapter_identity(prompt))


def adapter_identity(prompt: Prompt) -> bytes:
    """Of the adapter's weights. Empty without one."""
    return b"" if prompt.lora is None else prompt.lora.identity


def frame_digests(prompt: Prompt, page_size: int, first: int = 0) -> list[bytes]:
    """A digest of the given frames on each full page from page `first` on, and of their places there. Empty where there
    are none."""
    given = _places(prompt.frame_at, _borders(prompt, page_size, first))
    parts = zip(_pages(prompt.frame_at % page_size, given), _pages(prompt.frames, given), strict=True)
    return [_digest(len(at).to_bytes(8), at, frames) if len(at) else b"" for at, frames in parts]


def page_contents(prompt: Prompt, page_size: int, frames: list[bytes], first: int = 0) -> list[bytes]:
    """Bytes that differ where full pages from page `first` on differ: the rows of each, and its `frames`, as
    `frame_digests`."""
    borders = _borders(prompt, page_size, first)
    rows = [_pages(prompt.rows[name], borders) for name in sorted(prompt.rows)]
    lengths = struct.Struct(f"{len(rows)}q").pack
    return [b"".join((lengths(*map(len, page)), *page, of)) for *page, of in zip(*rows, frames, strict=True)]


def chained(known: tuple[bytes, ...], contents: list[bytes], identity: bytes) -> tuple[bytes, ...]:
    """The keys of pages: those known of the first, and those of the contents of the others."""
    keys = list(known)
    key = keys[-1] if keys else identity
    for content in contents:
        key = _digest(key, content)
        keys.append(key)
    return tuple(keys)


def _digest(*parts: bytes | memoryview) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _borders(prompt: Prompt, page_size: int, first: int) -> list[int]:
    """The positions at which its full pages from page `first` on begin, and the end of the last."""
    return [page * page_size for page in range(first, max(first, prompt.length // page_size) + 1)]


def _places(at: np.ndarray, borders: list[int]) -> list[int]:
    """How many of `at`, which ascend, are before each border."""
    return list(map(int, np.searchsorted(at, borders)))


def _pages(rows: np.ndarray | SparseRows, borders: list[int]) -> Sequence[bytes | memoryview]:
    """The content of the rows between neighbouring borders."""
    if not isinstance(rows, np.ndarray):
        parts = [b""] * (len(borders) - 1)
        for i in {bisect_right(borders, at) - 1 for at in map(int, rows.at)}:
            if 0 <= i < len(parts):
                parts[i] = rows[borders[i] : borders[i + 1]].tobytes()
        return parts
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    size = rows[:1].nbytes
    return [data[size * a : size * b] for a, b in pairwise(borders)]


@dataclass(frozen=True)
class PromptPart:
    """Some positions of a prompt: rows [n, ...], and frames [M, *frame] at `frame_at`, counted from the first."""

    rows: dict[str, np.ndarray | SparseRows]
    frames: np.ndarray
    frame_at: np.ndarray


def part_of(prompt: Prompt, positions: range) -> PromptPart:
    """What a prompt has at `positions`. Beyond its end it has nothing."""
    first, last = np.searchsorted(prompt.frame_at, (positions.start, positions.stop))
    rows = {name: a[positions.start : positions.stop] for name, a in prompt.rows.items()}
    return PromptPart(rows, prompt.frames[first:last], prompt.frame_at[first:last] - positions.start)
