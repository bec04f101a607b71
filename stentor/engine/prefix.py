"""What a prompt has in common with others: keys of its pages, and the part of it that a prefill computes.

Keys and values of a position depend on what stands there and before it, on the request's adapter, and on nothing else
of the request. So requests with the same voice, pieces of a long text and resumed requests find the pages of what they
have in common.
This is automatic prefix caching as in vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
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
    pages = range(len(keys), prompt.length // page_size)
    borders = np.arange(pages.start, max(pages.start, pages.stop) + 1) * page_size
    given = np.searchsorted(prompt.frame_at, borders)
    content = [_pages(prompt.rows[name], borders) for name in sorted(prompt.rows)]
    content += [_pages(prompt.frame_at % page_size, given), _pages(prompt.frames, given)]
    for page in zip(*content, strict=True):
        lengths = np.array([len(part) for part in page]).tobytes()
        key = hashlib.blake2b(b"".join((key, lengths, *page)), digest_size=16).digest()
        keys.append(key)
    return tuple(keys)


def _pages(rows: np.ndarray | SparseRows, borders: np.ndarray) -> list[bytes | memoryview]:
    """The content of the rows between neighbouring borders."""
    if not isinstance(rows, np.ndarray):
        return [rows[a:b].tobytes() for a, b in pairwise(borders)]
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
