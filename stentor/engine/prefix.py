"""What a prompt has in common with others: keys of its pages, and the part of it that a prefill computes.

Keys and values of a position depend on what stands there and before it, on the request's adapter, and on nothing else
of the request. So requests with the same voice, pieces of a long text and resumed requests find the pages of what they
have in common.
This is automatic prefix caching as in vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
import struct
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
    keys = list(known)
    key = keys[-1] if keys else b"" if prompt.lora is None else prompt.lora.identity
    pages = range(len(keys), max(len(keys), prompt.length // page_size) + 1)
    borders = [page * page_size for page in pages]
    given = _places(prompt.frame_at, borders)
    content = [_pages(prompt.rows[name], borders) for name in sorted(prompt.rows)]
    content += [_pages(prompt.frame_at % page_size, given), _pages(prompt.frames, given)]
    lengths = struct.Struct(f"{len(content)}q").pack
    for page in zip(*content, strict=True):
        key = hashlib.blake2b(b"".join((key, lengths(*map(len, page)), *page)), digest_size=16).digest()
        keys.append(key)
    return tuple(keys)


def _places(at: np.ndarray, borders: list[int]) -> list[int]:
    """How many of `at`, which ascend, are before each border."""
    return list(map(int, np.searchsorted(at, borders)))


def _pages(rows: np.ndarray | SparseRows, borders: list[int]) -> list[bytes | memoryview]:
    """The content of the rows between neighbouring borders."""
    if not isinstance(rows, np.ndarray):
        parts = zip(pairwise(borders), pairwise(_places(rows.at, borders)), strict=True)
        return [rows[a:b].tobytes() if first < last else b"" for (a, b), (first, last) in parts]
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
