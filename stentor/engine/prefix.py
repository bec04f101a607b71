"""What a prompt has in common with others: keys of its pages, and the part of it that a prefill computes.

Keys and values of a position depend on what stands there and before it, on the request's adapter, and on nothing else
of the request. So requests with the same voice, pieces of a long text and resumed requests find the pages of what they
have in common.
This is automatic prefix caching as in vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import compress
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
    names, keys, first = sorted(prompt.rows), list(known), b"" if prompt.lora is None else prompt.lora.identity
    key = keys[-1] if keys else first
    for start in range(len(keys) * page_size, prompt.length - page_size + 1, page_size):
        part = slice(start, start + page_size)
        content = hashlib.blake2b(key, digest_size=16)
        rows = [prompt.rows[name][part] for name in names]
        given_rows = [bool(row.any()) for row in rows]
        content.update(bytes(given_rows))
        for row in compress(rows, given_rows):
            content.update(row.tobytes())
        given = slice(*np.searchsorted(prompt.frame_at, (part.start, part.stop)))
        content.update((prompt.frame_at[given] - start).tobytes())
        content.update(prompt.frames[given].tobytes())
        key = content.digest()
        keys.append(key)
    return tuple(keys)


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
