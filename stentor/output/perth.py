"""The watermark of `resemble-perth` 1.0.1 for streams: `--watermark stentor.output.perth:Perth`.

The package runs a network over a whole file. This module reads the network's weights from the
package (`pip install 'stentor[perth]'`) and runs it over frames as they come. The network changes
the magnitudes of a spectrogram up to 2 kHz. The difference is added to the samples, so what is
above 2 kHz stays as it was. `detect` finds the mark.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install

Array = np.ndarray[Any, np.dtype[np.float32]]

WEIGHTS = "perth_net/pretrained/implicit/perth_net_250000.pth.tar"
BINS = 128  # frequencies of the spectrogram: multiples of 1 / WINDOW_S up to 2 kHz
WINDOW_S = 0.064
FRAMES_PER_SECOND = 100
OVERLAP = WINDOW_S * FRAMES_PER_SECOND * 3 / 8  # sum of the squares of all windows at a sample
LOWEST_RATE = 8_000  # Hz
TRAINED_RATE = 32_000  # Hz, to which magnitudes are scaled
MIN_DB = -180.0
SMALLEST = np.float32(10 ** (MIN_DB / 20))
RANGE_DB = 195.0  # of magnitudes that the network sees as 0 to 1
SLOPE = np.float32(0.01)  # of a leaky ReLU below 0
WIDE_LAYERS = 5  # convolutions over TAPS frames
TAPS = 7
REACH = TAPS // 2
DELAY = REACH * WIDE_LAYERS  # frames that follow a frame and change its mark
SILENCE = np.float32(0.05)  # of the loudest frame: what is below has no mark
STRETCHES = {"slow": 1.25, "normal": 1.0, "fast": 0.75}  # of time, in the detector's branches
BLOCK = 4  # frames at a time. Always as many, so that products round alike however audio is cut


class Layer(NamedTuple):
    """A convolution as a product: weights [taps * inputs, outputs], bias [outputs]."""

    weight: Array
    bias: Array


@cache
def _state() -> Mapping[str, Array]:
    """Tensors of the package's checkpoint by name. InvalidRequest if the package is missing."""
    package = importlib.util.find_spec("perth")  # does not import it: it needs torchaudio
    if package is None or importlib.util.find_spec("torch") is None:
        raise InvalidRequest(
            "watermark", f"Perth needs resemble-perth 1.0.1 and torch: {pip_install('perth')}"
        )
    import torch

    file = Path(*package.submodule_search_locations or ()) / WEIGHTS
    checkpoint = torch.load(file, map_location="cpu", weights_only=True)
    return {name: tensor.numpy() for name, tensor in checkpoint["model"].items()}


@cache
def _layers(name: str) -> tuple[Layer, ...]:
    """The layers of a stack of convolutions, such as `encoder.layers`."""
    state = _state()
    layers = []
    for index in range(WIDE_LAYERS + 2):
        weight = state[f"{name}.{index}.conv.weight"]  # [outputs, inputs, taps]
        bias = state[f"{name}.{index}.conv.bias"]
        by_tap = weight.transpose(2, 1, 0)
        product = by_tap.reshape(-1, len(weight))
        layers.append(Layer(np.ascontiguousarray(product), bias))
    return tuple(layers)


def _apply(layer: Layer, frames: Array) -> Array:
    """[taps - 1 + n, inputs] -> [n, outputs]."""
    inputs = frames.shape[1]
    taps = len(layer.weight) // inputs
    if taps > 1:
        windows = sliding_window_view(frames, taps, axis=0)
        by_tap = windows.transpose(0, 2, 1)
        frames = by_tap.reshape(len(windows), -1)
    outputs: Array = frames @ layer.weight + layer.bias
    return outputs


def _leaky(frames: Array) -> Array:
    rectified: Array = np.maximum(frames, SLOPE * frames)
    return rectified


class Spectra:
    """Spectra of frames at a sample rate, as the network knows them from 32 kHz."""

    def __init__(self, rate: int) -> None:
        """InvalidRequest: the rate is too low for the network's frequencies."""
        if rate < LOWEST_RATE:
            raise InvalidRequest("watermark", f"Perth needs {LOWEST_RATE} Hz or more, got {rate}")
        self.rate = rate
        window = WINDOW_S * rate
        self.half = int(np.ceil(window / 2)) - 1
        self.size = 2 * self.half + 1

        offsets = np.arange(-self.half, self.half + 1)
        turns = 2 * np.pi * offsets / window
        hann = 0.5 + 0.5 * np.cos(turns)
        angles = np.outer(turns, np.arange(BINS))
        cosines = np.cos(angles)
        sines = np.sin(angles)
        waves = np.hstack((cosines, sines))
        analysis = hann[:, None] * waves

        synthesis = 2 / (window * OVERLAP) * analysis.T
        synthesis[[0, BINS]] /= 2  # the mean has no negative twin
        self.analysis = np.ascontiguousarray(analysis, np.float32)
        self.synthesis = np.ascontiguousarray(synthesis, np.float32)
        self.scale = np.float32(TRAINED_RATE / rate)

    def center(self, frame: int) -> int:
        """The sample in the middle of a frame."""
        half = FRAMES_PER_SECOND // 2
        return (frame * self.rate + half) // FRAMES_PER_SECOND

    def analyse(self, audio: Array, starts: Sequence[int]) -> Array:
        """Cosine and sine parts [n, 2 * BINS] of the frames that begin at these samples."""
        frames = [audio[start : start + self.size] for start in starts]
        spectra: Array = np.stack(frames) @ self.analysis
        return spectra

    def magnitudes(self, spectra: Array) -> Array:
        """Spectra [n, 2 * BINS] -> magnitudes [n, BINS] as the network sees them."""
        cosines, sines = np.hsplit(spectra, 2)
        amplitudes = self.scale * np.hypot(cosines, sines)
        audible = np.maximum(amplitudes, SMALLEST)
        decibels = 20 * np.log10(audible)
        scaled = (decibels - MIN_DB) / RANGE_DB
        magnitudes: Array = scaled.astype(np.float32)
        return magnitudes


class _Encoder:
    """The network that marks, over blocks of frames. What it returns is DELAY frames late."""

    def __init__(self) -> None:
        self.layers = _layers("encoder.layers")
        hidden = len(self.layers[0].bias)
        shape = (TAPS - 1, hidden)
        past = np.zeros(shape, np.float32)
        self.past = [past] * WIDE_LAYERS  # the last inputs of each wide layer

    def feed(self, magnitudes: Array, first: int, end: float) -> Array:
        """[BLOCK, BINS] from frame `first` on -> changes of the frames from `first - DELAY` on.

        end: number of all frames. Outside of 0 to `end` layers see zeros, as at the ends of a file.
        """
        first_layer, *wide, last = self.layers
        hidden = _leaky(_apply(first_layer, magnitudes))
        for index, layer in enumerate(wide):
            outside = _outside(first - REACH * index, end)
            hidden[outside] = 0
            past = self.past[index]
            frames = np.concatenate((past, hidden))
            self.past[index] = frames[BLOCK:]
            hidden = _leaky(_apply(layer, frames))
        return _apply(last, hidden)


def _outside(first: int, end: float) -> np.ndarray:
    """Return which frames of a block are not in the audio, bool [BLOCK]."""
    frames = first + np.arange(BLOCK)
    return (frames < 0) | (frames >= end)


class Perth:
    """The watermark of one file or stream. It holds back at most 0.26 s."""

    def __init__(self, rate: int) -> None:
        self.spectra = Spectra(rate)
        self.encoder = _Encoder()
        half = self.spectra.half
        self.look_ahead = self.spectra.center(DELAY + BLOCK) + 2 * half + 2
        self.audio = np.zeros(half, np.float32)  # from `half` samples before `returned` on
        self.mark = np.zeros(half, np.float32)  # to be added to it
        self.count = 0  # samples that have come
        self.returned = 0
        self.frame = 0  # the first of the next block
        self.loudest = np.float32(0)
        self.unmarked = np.zeros((DELAY, 2 * BINS), np.float32)  # spectra of the last frames
        self.silent = np.ones(DELAY, bool)  # those of them that get no mark

    def process(self, samples: np.ndarray) -> np.ndarray:
        self.audio = np.concatenate((self.audio, samples))
        self.count += len(samples)
        while self._block_end < self.count:
            self._mark_block(float("inf"))
        changed = max(self.frame - DELAY, 0)
        final = self.spectra.center(changed) - self.spectra.half
        return self._take(max(final, self.returned))

    def flush(self) -> np.ndarray:
        end = 1 + self.count * FRAMES_PER_SECOND // self.spectra.rate
        while self.frame - DELAY < end:
            self._mark_block(end)
        return self._take(self.count)

    @property
    def _block_end(self) -> int:
        """The last sample of the next BLOCK frames."""
        last = self.frame + BLOCK - 1
        return self.spectra.center(last) + self.spectra.half

    def _mark_block(self, end: float) -> None:
        """Analyse the next BLOCK frames, and mark those that are DELAY frames earlier."""
        spectra = self._analyse()
        magnitudes = self.spectra.magnitudes(spectra)
        silent = self._silent(magnitudes)
        self.unmarked = np.concatenate((self.unmarked, spectra))
        self.silent = np.concatenate((self.silent, silent))

        first = self.frame - DELAY
        changes = self.encoder.feed(magnitudes, self.frame, end)
        exponents = changes * np.float32(RANGE_DB / 20)
        gains = 10**exponents - 1
        outside = _outside(first, end)
        gains[outside | self.silent[:BLOCK]] = 0
        spectra = self.unmarked[:BLOCK] * np.hstack((gains, gains))
        self._add(spectra, first)

        self.unmarked = self.unmarked[BLOCK:]
        self.silent = self.silent[BLOCK:]
        self.frame += BLOCK

    def _silent(self, magnitudes: Array) -> np.ndarray:
        """Return which frames of a block get no mark, bool [BLOCK]."""
        loudness = magnitudes.sum(axis=1)
        with_past = np.append(self.loudest, loudness)
        loudest = np.maximum.accumulate(with_past)
        self.loudest = loudest[-1]
        silent: np.ndarray = loudness <= SILENCE * loudest[1:]
        return silent

    def _analyse(self) -> Array:
        """Spectra of the next BLOCK frames. Behind the end there are zeros."""
        frames = range(self.frame, self.frame + BLOCK)
        starts = [self._index(frame) for frame in frames]
        audio = _padded(self.audio, starts[-1] + self.spectra.size)
        return self.spectra.analyse(audio, starts)

    def _add(self, spectra: Array, first: int) -> None:
        """Add what frames change to the mark."""
        size = self.spectra.size
        last = first + BLOCK - 1
        self.mark = _padded(self.mark, self._index(last) + size)
        changes = spectra @ self.spectra.synthesis
        for frame, change in enumerate(changes, first):
            if frame >= 0:
                start = self._index(frame)
                self.mark[start : start + size] += change

    def _index(self, frame: int) -> int:
        """Return where a frame begins in `audio` and `mark`."""
        return self.spectra.center(frame) - self.returned

    def _take(self, end: int) -> np.ndarray:
        """Return the samples up to `end`."""
        count = end - self.returned
        ready = slice(self.spectra.half, self.spectra.half + count)
        self.mark = _padded(self.mark, ready.stop)
        marked = self.audio[ready] + self.mark[ready]

        self.audio = self.audio[count:]
        self.mark = self.mark[count:]
        self.returned = end
        return marked


def _padded(samples: Array, count: int) -> Array:
    """Samples with zeros behind them, if there are fewer than `count`."""
    missing = count - len(samples)
    if missing <= 0:
        return samples
    return np.pad(samples, (0, missing))


def detect(samples: np.ndarray, rate: int) -> float:
    """Return how surely audio has the mark, from 0 to 1. samples: float32 [n]."""
    spectra = Spectra(rate)
    count = 1 + len(samples) * FRAMES_PER_SECOND // rate
    starts = [spectra.center(frame) for frame in range(count)]
    audio = np.pad(samples, spectra.half)
    audio = _padded(audio, starts[-1] + spectra.size)
    magnitudes = spectra.magnitudes(spectra.analyse(audio, starts))

    loudness = magnitudes.sum(axis=1)
    loud = loudness > SILENCE * loudness.max()
    if not loud.any():
        return 0.0

    votes = []
    for name, stretch in STRETCHES.items():
        stretched = max(int(count * stretch), 1)
        votes.append(_vote(name, magnitudes, loud, stretched))
    attention, marks = np.transpose(votes)
    weights = np.exp(attention)
    confidence = np.average(marks, weights=weights)
    return float(np.clip(confidence, 0, 1))


def _vote(name: str, magnitudes: Array, loud: np.ndarray, count: int) -> tuple[float, float]:
    """Return the weight of a branch of the detector and its confidence, with the audio stretched to
    `count` frames."""
    first, *wide, last = _layers(f"decoder.{name}_layers")
    hidden = _leaky(_apply(first, _stretched(magnitudes, count)))
    for layer in wide:
        frames = np.pad(hidden, ((REACH, REACH), (0, 0)))
        hidden = _leaky(_apply(layer, frames))

    nearest = np.arange(count) * len(loud) // count
    counted = loud[nearest]
    results = _apply(last, hidden)
    means = results[counted].mean(axis=0)
    attention, mark = means
    return float(attention), float(mark)


def _stretched(frames: Array, count: int) -> Array:
    """[n, width] -> [count, width], linearly between the first and the last."""
    last = len(frames) - 1
    places = np.linspace(0, last, count)
    below = places.astype(int)
    above = np.minimum(below + 1, last)
    share = (places - below).astype(np.float32)
    share = share[:, None]
    stretched: Array = frames[below] * (1 - share) + frames[above] * share
    return stretched
