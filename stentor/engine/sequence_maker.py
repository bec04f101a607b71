"""From prompts to sequences: what the buffers can serve, and the keys of what a prompt's pages
hold.

Keys and values of a position depend on what stands there and before it, on the request's adapter,
and on nothing else of the request. So requests with the same voice, pieces of a long text and
resumed requests find the pages of what they have in common. This is automatic prefix caching as in
vLLM (docs.vllm.ai, "Automatic Prefix Caching").
"""

from __future__ import annotations

import hashlib
import itertools
import struct
import sys
from collections.abc import Callable
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from stentor.config import Policy
from stentor.engine.columns import engine_columns
from stentor.engine.scheduling.sequence import Place, Sequence
from stentor.errors import EngineError, too_long
from stentor.models.base import ModelSpec, Prompt

if TYPE_CHECKING:
    from stentor.engine.sizes import BufferSizes


BROUGHT = b"brought"
"""Ends the key of a frame that a prompt brings, which the position of no other frame does."""


class SequenceMaker:
    """Makes the scheduler's view of prompts. Thread-safe."""

    def __init__(
        self,
        spec: ModelSpec,
        sizes: BufferSizes,
        policy: Policy,
        covering_evals: Callable[[int], int],
    ) -> None:
        self.sizes = sizes
        self.policy = policy
        self.ids = itertools.count()
        self._hop_seconds = spec.hop / spec.sample_rate
        self._late_seconds = spec.codec_timing.late / spec.sample_rate
        self._by_frame = bool(spec.frame_kv)
        self._covering_evals = covering_evals
        self._columns = engine_columns(spec).keys() | spec.columns.keys()

    def fit(self, prompt: Prompt) -> None:
        """Bound a prompt by what the buffers can serve. InvalidRequest if that is too little.
        EngineError names what in it is against the family's spec."""
        if unknown := prompt.columns.keys() - self._columns:
            raise EngineError(
                f"the prompt gives the column {min(unknown)!r}, which is not in spec.columns"
            )
        for name, rows in prompt.rows.items():
            if len(rows) != prompt.length:
                raise EngineError(
                    f"the prompt has {prompt.length} positions, and {len(rows)} rows of {name!r}"
                )
        if (prompt.has_voice or prompt.primes_codec) and not prompt.voice:
            raise EngineError("the prompt holds a voice, and `voice` does not name it")
        if prompt.primes_codec and prompt.codec_state is None:
            raise EngineError("the codec's state of the prompt has not been made")
        free = self.sizes.max_model_len - prompt.length
        if free < 1:
            raise too_long(prompt.length, self.sizes.max_model_len - 1)
        if self._by_frame:
            frames = prompt.num_given_frames + len(prompt.frames)
            free = min(free, self.sizes.frame_pages - frames - 1)
            if free < 1:
                raise too_long(frames + 2, self.sizes.frame_pages)
        prompt.max_frames = max(1, min(prompt.max_frames, free, self.sizes.max_frames))
        prompt.num_evals = self._covering_evals(prompt.num_evals)

    def new(
        self, prompt: Prompt, streaming: bool, place: Place, last: Sequence | None = None
    ) -> Sequence:
        """The sequence of a prompt that fits. One that follows `last` in its request finds in pages
        what it repeats of it."""
        cache = self.policy.prefix_cache
        size = self.sizes.page_size
        continues = (
            cache and last is not None and prompt.repeats == last.length + last.num_generated
        )
        prefix: tuple[bytes, ...] = ()
        if continues or (cache and prompt.length >= self.policy.min_cached(prompt.has_voice)):
            if continues and last is not None:
                previous_keys = last.prefix[: last.length // size]
            else:
                previous_keys = ()
            prefix = prefix_keys(prompt, size, previous_keys)
        if self._by_frame:
            frame_at = tuple(map(int, prompt.frame_at))
        else:
            frame_at = ()
        live = prompt.live
        return Sequence(
            next(self.ids),
            prompt.length,
            prompt.max_frames,
            prompt.num_evals,
            prompt.trim_silent_frames,
            self._hop_seconds,
            streaming,
            place,
            self._late_seconds,
            codec_prefix=len(prompt.codec_prefix),
            emitted_is_free=live is not None and live.emitted_is_free,
            prefix=prefix,
            continues=continues,
            keeps_pages=cache and prompt.continuation is not None,
            has_voice=prompt.has_voice,
            frame_at=frame_at,
            frame_keys=frame_keys(frame_at, prefix, size, prompt.num_given_frames),
            num_given=prompt.num_given,
            given_frames=prompt.num_given_frames,
            max_schedulable=sys.maxsize if live is None else 1 + len(prompt.columns[live.column]),
        )


def prefix_keys(prompt: Prompt, page_size: int, known: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """A key for each full page of the prompt: of its rows, of the places of its frames, of all
    pages before it, of the voice, and of the adapter's weights (not of its number, which another
    gets).

    known: the keys of its first pages.
    """
    first = len(known)
    borders = [
        page * page_size for page in range(first, max(first, prompt.length // page_size) + 1)
    ]
    num_frames = list(
        map(int, np.searchsorted(prompt.frame_at, borders))
    )  # frames before each border
    parts = [_pages(prompt.rows[name], borders) for name in sorted(prompt.rows)]
    parts += [_pages(prompt.frame_at % page_size, num_frames)]
    lengths = struct.Struct(f"{len(parts)}q").pack
    if prompt.lora is None:
        adapter = b""
    else:
        adapter = prompt.lora.identity
    keys = list(known)
    for page, frames in zip(zip(*parts, strict=True), num_frames[1:], strict=True):
        voice = " ".join(
            id for id, start in prompt.voices or ((prompt.voice, -1),) if start < frames
        )
        identity = _digest(len(adapter).to_bytes(8), adapter, voice.encode())
        keys.append(_digest(*keys[-1:], identity, lengths(*map(len, page)), *page))
    return tuple(keys)


def frame_keys(
    frame_at: Seq[int], prefix: Seq[bytes], page_size: int, brought: int = 0
) -> tuple[bytes, ...]:
    """A key for the page of each prompt frame, in page sets by frame, that stands in a full page of
    the prompt.

    frame_at: positions of the frames. prefix: keys of the full pages. brought: frames before these
    that the prompt brings, which stand at its first position.
    """
    first = [prefix[0] + number.to_bytes(4) + BROUGHT for number in range(brought) if prefix]
    pages = ((at // page_size, at % page_size) for at in frame_at)
    keys = [prefix[page] + offset.to_bytes(4) for page, offset in pages if page < len(prefix)]
    return tuple(first + keys)


def _digest(*parts: bytes | memoryview) -> bytes:
    return hashlib.blake2b(b"".join(parts), digest_size=16).digest()


def _pages(rows: np.ndarray, borders: list[int]) -> Seq[memoryview]:
    """The content of the rows between neighbouring borders."""
    data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
    size = rows[:1].nbytes
    return [data[size * a : size * b] for a, b in pairwise(borders)]
