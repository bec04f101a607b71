"""From prompts to sequences: what the buffers can serve, and the keys of what a prompt's pages hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from stentor.config import Policy
from stentor.engine.memory_plan import BufferSizes
from stentor.engine.prefix import frame_keys, prefix_keys
from stentor.engine.running.slot_table import engine_columns
from stentor.engine.scheduling.sequence import Place, Sequence
from stentor.errors import EngineError, too_long
from stentor.models.base import ModelSpec, Prompt


class SequenceMaker:
    """Makes the scheduler's view of prompts. Thread-safe."""

    def __init__(
        self, spec: ModelSpec, sizes: BufferSizes, policy: Policy, covering_evals: Callable[[int], int]
    ) -> None:
        self.sizes, self.policy = sizes, policy
        self.ids = itertools.count()
        self._hop_seconds = spec.hop / spec.sample_rate
        self._late_seconds = spec.codec_timing.late / spec.sample_rate
        self._timing, self._by_frame = spec.codec_timing, bool(spec.frame_kv)
        self._covering_evals = covering_evals
        self._columns = engine_columns(spec).keys() | spec.columns.keys()

    def fit(self, prompt: Prompt) -> None:
        """Bound a prompt by what the buffers can serve. InvalidRequest if that is too little. EngineError names what in
        it is against the family's spec."""
        if unknown := prompt.columns.keys() - self._columns:
            raise EngineError(f"the prompt gives the column {min(unknown)!r}, which is not in spec.columns")
        for name, rows in prompt.rows.items():
            if len(rows) != prompt.length:
                raise EngineError(f"the prompt has {prompt.length} positions, and {len(rows)} rows of {name!r}")
        if (prompt.has_voice or prompt.primes_codec) and not prompt.voice:
            raise EngineError("the prompt holds a voice, and `voice` does not name it")
        if prompt.primes_codec and prompt.codec_state is None:
            raise EngineError("the codec's state of the prompt has not been made")
        free = self.sizes.max_model_len - prompt.length
        if free < 1:
            raise too_long(prompt.length, self.sizes.max_model_len - 1)
        if self._by_frame:
            free = min(free, self.sizes.frame_pages - len(prompt.frames) - 1)
            if free < 1:
                raise too_long(len(prompt.frames) + 2, self.sizes.frame_pages)
        prompt.max_frames = max(1, min(prompt.max_frames, free, self.sizes.max_frames))
        prompt.num_evals = self._covering_evals(prompt.num_evals)

    def new(self, prompt: Prompt, streaming: bool, place: Place) -> Sequence:
        """The sequence of a prompt that fits."""
        streaming = streaming and self._timing.chunks
        counts = (prompt.length, prompt.max_frames, prompt.num_evals, prompt.trim_silent_frames)
        seq = Sequence(next(self.ids), *counts, self._hop_seconds, streaming, place)
        seq.audio_scheduled = self._timing.start(len(prompt.codec_prefix), streaming)
        seq.window_end = self._timing.window_end(len(prompt.codec_prefix))
        seq.held_frames = self._timing.held
        seq.keeps_pages = self.policy.prefix_cache and prompt.continuation is not None
        seq.has_voice, seq.late_seconds = prompt.has_voice, self._late_seconds
        if self._by_frame:
            seq.frame_at = tuple(map(int, prompt.frame_at))
        seq.given = prompt.num_given
        if self.policy.prefix_cache and prompt.length >= self.policy.min_cached(seq.has_voice):
            seq.prefix = prefix_keys(prompt, self.sizes.page_size)
            seq.frame_keys = frame_keys(seq.frame_at, seq.prefix, self.sizes.page_size)
        if prompt.live is not None:
            seq.max_schedulable = 1 + len(prompt.columns[prompt.live.column])
            seq.heard_is_free = prompt.live.heard_is_free
        return seq

    def following(self, prompt: Prompt, last: Sequence) -> Sequence:
        """The sequence of the prompt that follows `last` in its request. It finds in pages what it repeats of it."""
        seq = self.new(prompt, last.streaming, Place.NEXT)
        seq.continues = self.policy.prefix_cache and prompt.repeats == last.length + last.num_generated
        if seq.continues:
            known = last.prefix[: last.length // self.sizes.page_size]
            seq.prefix = prefix_keys(prompt, self.sizes.page_size, known)
        return seq
