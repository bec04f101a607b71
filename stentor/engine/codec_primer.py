"""The codec's state with the conditions of a voice and after the frames that a request continues, made once per voice.

It is made beside the engine's thread, on a stream of its own, and kept on the host. Whoever asks for what is kept waits
for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stentor import kernels
from stentor.audio import digest
from stentor.config import EngineConfig
from stentor.engine.codec_pages import CodecPages, one_row
from stentor.engine.codec_state import CodecStateTable
from stentor.engine.cuda_graphs import CudaGraphRunner
from stentor.engine.device import BACKGROUND, Device
from stentor.engine.memory_plan import MIB
from stentor.engine.once import CacheCounts, Claim, LruCache, OnceCache
from stentor.models.base import Prompt, SpeechModel


class CodecPrimer:
    """One state at a time, in pieces of fixed lengths, each of which is a captured graph. Thread-safe."""

    def __init__(self, model: SpeechModel, config: EngineConfig, device: Device) -> None:
        spec, where = model.spec, device.torch
        self.model, self.device, self._deterministic = model, device, config.deterministic
        self.timing = spec.codec_timing
        longest = self.timing.grid if self.timing.window else spec.codec_silent
        self.sizes = piece_sizes(min(spec.codec_prefix, longest) if self.timing.chunks else 0, self.timing.grid)
        self.stream = device.stream(BACKGROUND)
        self.graphs = CudaGraphRunner("priming", self._decode, device, self.stream, config.require_graphs)
        self._state = CodecStateTable(model.codec.columns, 1, where)
        self._row = torch.zeros(1, dtype=torch.int64, device=where)
        shape = (1, max(self.sizes, default=0) + self.timing.lookahead, *spec.frame.shape)
        self._frames = torch.zeros(shape, dtype=spec.frame.dtype, device=where)
        chunks = self.timing.num_chunks(spec.codec_prefix)
        assert not self.timing.window or chunks < self.timing.window, "a prefix must leave pages for the stream"
        self._pages = CodecPages(model.codec.pages, replace(self.timing, window=chunks), 1, device)
        self._call = one_row(self._pages.pool, self._pages.width, where)._replace(silent=True)
        budget = config.codec_pages_mb if self._pages.width else config.codec_states_mb
        kept = LruCache[Tensor](budget * MIB, lambda state: state.nbytes)
        self._once = OnceCache[Tensor]("stentor-prime", 1, kept, self._start)

    def capture(self) -> None:
        """Capture a graph of each length."""
        with self.stream.active():
            self.graphs.capture((n,) for n in self.sizes)

    def claim(self, prompt: Prompt) -> Claim[Tensor]:
        """The codec's state with the prompt's conditions, after its codec prefix: a row and then pages, as words on the
        host."""
        frames, conditions = prompt.codec_prefix, prompt.codec_conditions
        key = digest(frames) + "".join(f" {name} {digest(conditions[name])}" for name in sorted(conditions))
        prompt.codec_key = key
        return self._once.claim(key, lambda: self._prime(frames, conditions))

    def state(self, prompt: Prompt) -> Tensor:
        """Wait for the prompt's codec state, and keep it in the prompt."""
        if prompt.codec_state is None:
            prompt.codec_state = self.claim(prompt).result()
        return prompt.codec_state

    def counts(self) -> CacheCounts:
        """`held` is in bytes."""
        return self._once.counts()

    def warm_up(self) -> None:
        """Run every length once in the thread that will, so that the first voice costs what later ones do."""
        count = sum(self.sizes) + self.timing.lookahead
        frames = np.zeros((count, *self.model.spec.frame.shape), np.float32)
        if self.sizes:
            self._once.on_each_thread(1, partial(self._prime, frames, {}))

    def close(self) -> None:
        """End the thread, after the state that it is making."""
        self._once.close()

    def _start(self) -> None:
        self.device.select()
        torch.set_flush_denormal(True)  # as in the engine's thread

    def _prime(self, frames: np.ndarray, conditions: Mapping[str, np.ndarray]) -> Tensor:
        with (
            torch.inference_mode(),
            kernels.batch_invariant(self._deterministic),
            self.device.current(),
            self.stream.active(),
        ):
            self._state.reset(self._row)
            self._pages.enter(0, 0, "", self._row)
            for name, value in conditions.items():
                column = self._state.columns[name]
                self.device.fill(column[0] if value.ndim else column, np.atleast_1d(value))
            source = self.device.upload(frames).to(self._frames.dtype)
            at = 0
            for count in pieces(self.timing.chunks_of(len(frames)), self.sizes):
                given = count + self.timing.lookahead
                self._frames[0, :given].copy_(source[at : at + given])
                self._call.start.fill_(at - len(frames))
                self._next_page(at, count)
                self.graphs(count)
                at += count
            state = self.device.download(torch.cat((self._state.data[0], *self._pages.save(0))))
            done = self.device.event()
            done.record()
            done.wait_host()
        return state

    def _next_page(self, at: int, count: int) -> None:
        """The next call writes the page of the chunk of `count` frames from frame `at` of the prefix."""
        if self._pages.width:
            pages, filled = self._pages.row(0, at, count)
            self.device.fill(self._call.pages.table[0], pages)
            self.device.fill(self._call.pages.filled, [filled])

    def _decode(self, count: int) -> None:
        """The captured function: the first `count` of `_frames` in, `_state` on to what follows them."""
        frames = self._frames[:, : count + self.timing.lookahead]
        _, new = self.model.codec.decode(frames, self._state.gather(self._row), self._call)
        self._state.store(self._row, new)


def piece_sizes(longest: int, grid: int = 1) -> list[int]:
    """Frames of one call, largest first: the longest, and powers of two below it, in steps of the codec's grid."""
    most = longest // grid
    return sorted({n * grid for n in (most, *(1 << i for i in range(most.bit_length())))} if most else (), reverse=True)


def pieces(count: int, sizes: list[int]) -> list[int]:
    """`count` frames as pieces of these sizes, largest first."""
    found = []
    for size in sizes:
        found += [size] * (count // size)
        count %= size
    assert count == 0, "the family's codec_prefix says that it has none"
    return found
