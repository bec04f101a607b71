"""Prefixes that prompts share: keys of its pages, and the part of it that a prefill computes.

Keys and values of a position depend on what stands there and before it, on the request's adapter, and on nothing else
of the request. So requests with the same voice, pieces of a long text and resumed requests find the pages of what they
have in common.
This is automatic prefix caching as in vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from stentor.models.base import Prompt


def prefix_keys(prompt: Prompt, page_size: int, known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """A key for each full page of the prompt: of its rows, of where it has given frames, of all pages before it, of the
    voice, and of the adapter's weights (not of its number, which another gets).

    known: the keys of its first pages.
    """
    first = len(known)
    borders = [page * page_size for page in range(first, max(first, prompt.length // page_size) + 1)]
    given = list(map(int, np.searchsorted(prompt.frame_at, borders)))  # frames before each border
    parts = [_pages(prompt.rows[name], borders) for name in sorted(prompt.rows)]
    parts += [_pages(prompt.frame_at % page_size, given)]
    lengths = struct.Struct(f"{len(parts)}q").pack
    adapter = b"" if prompt.lora is None else prompt.lora.identity
    keys = list(known)
    for page, frames in zip(zip(*parts, strict=True), given[1:], strict=True):
        voice = " ".join(id for id, start in prompt.voices or ((prompt.voice, -1),) if start < frames)
        identity = _digest(len(adapter).to_bytes(8), adapter, voice.encode())
        keys.append(_digest(*keys[-1:], identity, lengths(*map(len, page)), *page))
    return tuple(keys)


def frame_keys(frame_at: Sequence[int], prefix: Sequence[bytes], page_size: int) -> tuple[bytes, ...]:
    """A key for the page of each given frame, in page sets by frame, that stands in a full page of the prompt.

    frame_at: positions of the frames. prefix: keys of the full pages.
    """
    pages = ((at // page_size, at % page_size) for at in frame_at)
    return tuple(prefix[page] + offset.to_bytes(4) for page, offset in pages if page < len(prefix))


def _digest(*parts: bytes | memoryview) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _pages(rows: np.ndarray, borders: list[int]) -> Sequence[memoryview]:
    """The content of the rows between neighbouring borders."""
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    size = rows[:1].nbytes
    return [data[size * a : size * b] for a, b in pairwise(borders)]


@dataclass(frozen=True)
class PromptPart:
    """Some positions of a prompt: rows [n, ...], and frames [M, *frame] at `frame_at`, counted from the first."""

    rows: dict[str, np.ndarray]
    frames: np.ndarray
    frame_at: np.ndarray


def part_of(prompt: Prompt, positions: range) -> PromptPart:
    """Return the part of a prompt at `positions`, which is empty beyond its end."""
    first, last = np.searchsorted(prompt.frame_at, (positions.start, positions.stop))
    rows = {name: a[positions.start : positions.stop] for name, a in prompt.rows.items()}
    return PromptPart(rows, prompt.frames[first:last], prompt.frame_at[first:last] - positions.start)
