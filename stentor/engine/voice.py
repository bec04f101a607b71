"""Voices: recordings as a family encodes them, and the codec's state after them. Each is made once
for all callers.

This is done beside the engine's thread, in threads and on CUDA streams of its own. Nobody waits for
the audio of others, and a cached voice is returned at once.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from stentor import kernels
from stentor.audio import QUALITY, Recording
from stentor.config import EngineConfig
from stentor.engine.once import CacheCounts, Claim, LruCache, OnceCache
from stentor.engine.running.codec_state import CodecStateTable, one_row
from stentor.engine.running.cuda_graphs import CudaGraphRunner
from stentor.engine.running.device import BACKGROUND, CudaStream, Device
from stentor.engine.sizes import MIB
from stentor.kernels.resampler import Filters, filters, resampled
from stentor.layers.types import eager, torch_dtype
from stentor.layers.windows import STEP
from stentor.models.base import Prompt, SpeechModel, Voice, VoiceSource
from stentor.models.codec_timing import UtteranceTiming

log = logging.getLogger("stentor.engine")

# at a time on a CPU. On a GPU one, which graphs keep busy, so that less of it runs beside the
# streams
ENCODINGS = 2
USUAL_RATES = (16_000, 22_050, 24_000, 44_100, 48_000)
WARM_SECONDS = (3, 30)  # of recordings: libraries may have kernels for few windows and for many
FILTERS = 16  # of rates used last, that are kept

Call = Callable[..., tuple[Tensor, ...]]


class Resampler:
    """Recordings on the device, at the rate of one model: by soxr on a CPU, and on a GPU by its
    filters as a product.

    For one thread at a time, but on a CPU for any number.
    """

    def __init__(self, device: Device, rate: int) -> None:
        self.device = device
        self.rate = rate
        self._filters: LruCache[Filters] = LruCache(FILTERS)

    def warm_up(self) -> None:
        """Make the filters of usual rates, which takes some milliseconds for each, and load the
        kernels of products."""
        for source, seconds in itertools.product(
            USUAL_RATES if self.device.cuda else (), WARM_SECONDS
        ):
            self(Recording(np.zeros(seconds * source, np.float32), source))

    def __call__(self, recording: Recording) -> Tensor:
        """float32 samples [ceil(n * rate / recording.rate)], those of `Recording.at`."""
        if self.device.cuda and recording.rate != self.rate:
            filters = self._of(recording.rate)
        else:
            filters = None
        if filters is None:
            return torch.from_numpy(recording.at(self.rate)).to(self.device.torch)
        samples = torch.from_numpy(recording.samples).to(self.device.torch)
        return resampled(samples, recording.rate, self.rate, filters)

    def _of(self, source: int) -> Filters | None:
        on_device = self._filters.get(str(source))
        if on_device is None and (new := filters(source, self.rate, QUALITY)) is not None:
            device = self.device.torch
            on_device = Filters(new.before, new.step, new.matrix.to(device), new.first.to(device))
            self._filters.put(str(source), on_device)
        return on_device


class VoiceEncoder:
    """Encodes recordings by the family's `encode` in threads of its own, and caches the voices:
    each recording is encoded once per role. For any thread but the engine's."""

    def __init__(
        self,
        model: SpeechModel,
        device: Device,
        capacity: int,
        columns: int = eager.columns,
        require_graphs: bool = False,
    ) -> None:
        """capacity: voices that are kept. columns: of the largest window that is launched."""
        self.model = model
        self.device = device
        self.threads = threads = 1 if device.cuda else ENCODINGS
        self._resampler = Resampler(device, model.spec.reference_rate)
        self._stream = device.stream(BACKGROUND)
        self._launch = EncoderGraphs(device, self._stream, require_graphs, columns)
        self.graphs = self._launch.graphs
        self._once = OnceCache[Voice]("stentor-encode", threads, LruCache(capacity), device.select)

    def claim(self, source: VoiceSource) -> Claim[Voice]:
        """Begin to encode as soon as a thread is free."""
        recording = source.recording
        id = f"{recording.digest} {source.role}"
        return self._once.claim(id, lambda: Voice(id, self._encode(source)), recording.cacheable)

    def counts(self) -> CacheCounts:
        return self._once.counts()

    def warm_up(self) -> None:
        """Encode noise in every thread, so that the first voice costs what later ones do: graphs
        are captured, libraries have been loaded, and memory for the longest reference belongs to
        the stream."""
        spec = self.model.spec
        shortest, longest = (int(s * spec.reference_rate) for s in spec.reference_seconds)
        if self.device.cuda:
            lengths = warm_lengths(shortest, longest)
        else:
            lengths = [shortest]
        if spec.takes_reference:
            noise = [Recording(_noise(n), spec.reference_rate) for n in lengths]
        else:
            noise = []

        def encode() -> None:
            with torch.inference_mode(), self.device.current(), self._stream.active():
                self._resampler.warm_up()
            with self._launch.capturing():
                for recording in noise:
                    try:
                        self._encode(VoiceSource(recording, "reference"))
                    except (
                        torch.OutOfMemoryError
                    ):  # requests with audio of this length will fail as this does
                        seconds = len(recording.samples) / recording.rate
                        log.warning("no memory to encode %.0f s of reference audio", seconds)

        if noise:
            self._once.on_each_thread(self.threads, encode)

    def close(self) -> None:
        """End the threads, after the encodings that they are doing."""
        self._once.close()

    def _encode(self, source: VoiceSource) -> dict[str, np.ndarray]:
        with torch.inference_mode(), self.device.current(), self._stream.active():
            try:
                samples = self._resampler(source.prepare(source.recording))
                features = self.model.encode(samples, source.role, self._launch)
                return {name: self.device.read(value) for name, value in features.items()}
            except torch.OutOfMemoryError:
                self.device.release_cached()
                raise


@dataclass
class _Captured:
    """A function over static buffers."""

    fn: Call
    inputs: list[Tensor]
    outputs: tuple[Tensor, ...] = ()


class EncoderGraphs:
    """A Launch on one stream, for one thread: a graph per function and shapes of inputs.

    What was not captured, and all on a CPU, runs eagerly.
    """

    def __init__(self, device: Device, stream: CudaStream, required: bool, columns: int) -> None:
        self.device = device
        self.columns = columns
        self.graphs = CudaGraphRunner("encoding", self._run, device, stream, required)
        self._capturing = False
        self._captured: list[_Captured] = []
        self._numbers: dict[tuple[Call, tuple[torch.Size, ...]], int] = {}

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Inside, what is launched for the first time is captured."""
        self._capturing = self.device.cuda
        try:
            yield
        finally:
            self._capturing = False

    def __call__(self, fn: Call, *inputs: Tensor) -> tuple[Tensor, ...]:
        """fn(*inputs). The results of a graph are valid until its next launch."""
        key = fn, tuple(t.shape for t in inputs)
        number = self._numbers.get(key)
        if number is None and self._capturing:
            number = self._numbers[key] = len(self._captured)
            self._captured.append(_Captured(fn, [t.clone() for t in inputs]))
            self.graphs.capture([(number,)])
        if number is None:
            self.graphs.eager_calls += 1
            return fn(*inputs)
        call = self._captured[number]
        for buffer, value in zip(call.inputs, inputs, strict=True):
            buffer.copy_(value)
        self.graphs(number)
        return call.outputs

    def _run(self, number: int) -> None:
        """The captured function."""
        call = self._captured[number]
        call.outputs = call.fn(*call.inputs)


class CodecPrimer:
    """Makes the codec's state with the conditions of a voice and after the frames that a request
    continues.

    One state at a time, in pieces of fixed lengths, each of which is a captured graph. It is kept
    on the host. Thread-safe.
    """

    def __init__(self, model: SpeechModel, config: EngineConfig, device: Device) -> None:
        spec = model.spec
        where = device.torch
        self.model = model
        self.device = device
        self._deterministic = config.deterministic
        # A codec that decodes from an utterance's beginning is given its prefix with each call.
        primes = not isinstance(spec.codec_timing, UtteranceTiming)
        longest = min(spec.codec_prefix, spec.codec_silent) if primes else 0
        self.sizes = piece_sizes(longest)
        self.stream = device.stream(BACKGROUND)
        self.graphs = CudaGraphRunner(
            "priming", self._decode, device, self.stream, config.require_graphs
        )
        self._state = CodecStateTable(model.codec.columns, 1, where)
        self._row = torch.zeros(1, dtype=torch.int64, device=where)
        shape = (1, longest, *spec.frame.shape)
        self._frames = torch.zeros(shape, dtype=torch_dtype(spec.frame.dtype), device=where)
        self._call = one_row(where, longest)._replace(silent=True)
        states = LruCache[Tensor](config.codec_states_mb * MIB, lambda state: state.nbytes)
        self._once = OnceCache[Tensor]("stentor-prime", 1, states, self._start)

    def capture(self) -> None:
        """Capture a graph of each length."""
        with self.stream.active():
            self.graphs.capture((n,) for n in self.sizes)

    def claim(self, prompt: Prompt) -> Claim[Tensor]:
        """The codec's state with the prompt's conditions, after its codec prefix, as words on the
        host. Prompts in one voice share it."""
        return self._once.claim(
            prompt.voice, partial(self._prime, prompt.codec_prefix, prompt.codec_conditions)
        )

    def counts(self) -> CacheCounts:
        """`size` is in bytes."""
        return self._once.counts()

    def warm_up(self) -> None:
        """Run every length once in the thread that will, so that the first voice costs what later
        ones do."""
        frames = np.zeros((sum(self.sizes), *self.model.spec.frame.shape), np.float32)
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
            for name, value in conditions.items():
                column = self._state.columns[name]
                self.device.fill(column[0] if value.ndim else column, np.atleast_1d(value))
            source = self.device.upload(frames).to(self._frames.dtype)
            at = 0
            for count in pieces(len(frames) if self.sizes else 0, self.sizes):
                self._frames[0, :count].copy_(source[at : at + count])
                self._call.start.fill_(at - len(frames))
                self._call.stop.fill_(at + count - len(frames))
                self.graphs(count)
                at += count
            state = self.device.download(self._state.data[0].clone())
            event = self.device.event()
            event.record()
            event.wait_host()
        return state

    def _decode(self, count: int) -> None:
        """The captured function: the first `count` of `_frames` in, `_state` on to what follows
        them."""
        call = self._call._replace(decodes=count)
        state = self._state.gather(self._row)
        _, new = self.model.codec.decode(self._frames[:, :count], state, call)
        self._state.store(self._row, new)


def warm_lengths(shortest: int, longest: int) -> list[int]:
    """Samples of recordings, longest first, that need all shapes that recordings of any length
    need.

    What sees all of a recording takes it in steps. A window is at least three quarters of the next
    one, so lengths that grow by a third need each of them as their last.
    """
    grown = [shortest]
    while (more := -(-4 * grown[-1] // 3)) < longest:
        grown.append(more)
    return sorted({*range(longest, shortest, -STEP), *grown}, reverse=True)


def _noise(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count).astype(np.float32) * np.float32(0.1)


def piece_sizes(longest: int) -> list[int]:
    """Frames of one call, largest first: the longest, and powers of two below it."""
    if not longest:
        return []
    sizes = {longest, *(1 << i for i in range(longest.bit_length()) if 1 << i <= longest)}
    return sorted(sizes, reverse=True)


def pieces(count: int, sizes: list[int]) -> list[int]:
    """`count` frames as pieces of these sizes, largest first."""
    result = []
    for size in sizes:
        result += [size] * (count // size)
        count %= size
    assert count == 0, "the family's codec_prefix says that it has none"
    return result
