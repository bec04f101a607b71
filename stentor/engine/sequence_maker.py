"""From prompts to sequences: what the buffers can serve, and the keys of what a prompt's pages hold."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from stentor.config import Policy
from stentor.engine.buffer_sizes import BufferSizes
from stentor.engine.known_prefixes import KnownPrefixes
from stentor.engine.prefix import prefix_keys
from stentor.engine.sequence import Place, Sequence
from stentor.errors import too_long
from stentor.models.base import ModelSpec, Prompt


class SequenceMaker:
    """Makes the scheduler's view of prompts. Thread-safe."""

    def __init__(
        self, spec: ModelSpec, sizes: BufferSizes, policy: Policy, covering_evals: Callable[[int], int]
    ) -> None:
        self.sizes, self.policy = sizes, policy
        self.ids = itertools.count()
        self._known = KnownPrefixes(sizes.page_size)
        self._hop_seconds = spec.hop / spec.sample_rate
        self._timing = spec.codec_timing
        self._covering_evals = covering_evals

    def fit(self, prompt: Prompt) -> None:
        """Bound a prompt by what the buffers can serve. InvalidRequest if that is too little."""
        free = self.sizes.max_model_len - prompt.length
        if free < 1:
            raise too_long(prompt.length, self.sizes.max_model_len - 1)
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
        seq.has_voice = len(prompt.frames) > 0
        if self.policy.prefix_cache and prompt.length >= self.policy.min_cached(seq.has_voice):
            seq.prefix = self._known.keys(prompt)
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
