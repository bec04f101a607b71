"""Even loudness: measures of a chapter, and the gain and limiter that bring it to a target.

ACX accepts files with an RMS of -23 to -18 dB, peaks below -3 dB and a noise floor below -60 dB.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stentor.errors import InvalidRequest

ACX_RMS = (-23.0, -18.0)
ACX_PEAK = -3.0
ACX_FLOOR = -60.0
TARGET_RMS = -20.0
CEILING = -4.0
"""True peak in dB that the limiter leaves. Lossy codecs add up to 1 dB to it."""
OVERSAMPLING = 4
"""Samples at which the limiter looks for one of the audio, as peaks lie between samples."""
WINDOW_SECONDS = 0.5
"""Length of the quietest stretch, whose RMS is the noise floor."""
SILENT = -120.0
"""Level in dB of digital silence."""
MAX_GAIN = 30.0
"""Most dB by which a chapter is made louder: more would raise noise."""


@dataclass(frozen=True)
class Levels:
    """Measures of a chapter. lufs: integrated loudness (EBU R 128). rms, peak (between samples
    too), floor (RMS of the quietest half second): dB of full scale."""

    lufs: float
    rms: float
    peak: float
    floor: float

    @property
    def acx(self) -> bool:
        """Whether ACX accepts a file with them."""
        low, high = ACX_RMS
        return low <= self.rms <= high and self.peak <= ACX_PEAK and self.floor <= ACX_FLOOR

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "acx": self.acx}


@dataclass(frozen=True)
class Target:
    """A loudness to reach. kind: "rms" or "lufs", in dB, or "off"."""

    kind: str = "rms"
    value: float = TARGET_RMS

    @classmethod
    def of(cls, text: str) -> Target:
        """The target that a flag names: acx, off, or LUFS. InvalidRequest("loudness")."""
        if text == "acx":
            return cls()
        if text == "off":
            return cls("off", 0.0)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not -40 <= value <= -5:
            raise InvalidRequest(
                "loudness", f"must be acx, off, or LUFS from -40 to -5, got {text[:40]!r}"
            )
        return cls("lufs", value)

    def gain(self, levels: Levels) -> float:
        """The gain in dB that brings a chapter with these levels to the target."""
        if self.kind == "off" or levels.rms <= SILENT:
            return 0.0
        if self.kind == "lufs":
            return min(MAX_GAIN, self.value - levels.lufs)
        return min(MAX_GAIN, self.value - levels.rms)


class Meter:
    """Measures audio that is fed to it, in constant memory."""

    def __init__(self, rate: int) -> None:
        self._graph = FilterGraph(rate, [("ebur128", "peak=true:metadata=1:framelog=quiet")])
        self._window = round(WINDOW_SECONDS * rate)
        self._rest = np.zeros(0, np.float32)
        self._power = 0.0
        self._count = 0
        self._quietest = math.inf

    def feed(self, samples: np.ndarray) -> None:
        """Take float32 samples [n]."""
        for _ in self._graph.feed(samples):
            pass
        joined = np.concatenate((self._rest, samples))
        size = len(joined) // self._window * self._window
        squares = np.square(joined[:size], dtype=np.float64).reshape(-1, self._window)
        if size:
            powers = squares.mean(axis=1)
            self._quietest = min(self._quietest, float(powers.min()))
            self._power += float(squares.sum())
            self._count += size
        self._rest = joined[size:]

    def levels(self) -> Levels:
        """The measures of all that has been fed."""
        for _ in self._graph.finish():
            pass
        power = self._power + float(np.square(self._rest, dtype=np.float64).sum())
        facts = self._graph.facts
        return Levels(
            lufs=round(float(facts.get("lavfi.r128.I", SILENT)), 2),
            rms=_decibels(power / max(1, self._count + len(self._rest)), 10),
            peak=_decibels(float(facts.get("lavfi.r128.true_peak", 0.0)), 20),
            floor=_decibels(self._floor(), 10),
        )

    def _floor(self) -> float:
        """The power of the quietest stretch, or of all where there is no complete one."""
        if self._count:
            return self._quietest
        return float(np.square(self._rest, dtype=np.float64).mean()) if len(self._rest) else 0.0


def measured(audio: Iterable[np.ndarray], rate: int) -> Levels:
    """The levels of float32 samples at `rate` Hz."""
    meter = Meter(rate)
    for samples in audio:
        meter.feed(samples)
    return meter.levels()


def levelled(audio: Iterable[np.ndarray], rate: int, gain: float) -> Iterator[np.ndarray]:
    """Apply `gain` in dB, and keep true peaks below CEILING. The length stays."""
    factor = np.float32(10 ** (gain / 20))
    limit = 10 ** (CEILING / 20)
    limiter = FilterGraph(
        rate,
        [
            ("aresample", f"{OVERSAMPLING * rate}"),
            ("alimiter", f"limit={limit:.6f}:attack=5:release=50:level=false:latency=true"),
            ("aresample", f"{rate}"),
        ],
    )
    for samples in audio:
        yield from limiter.feed(samples * factor)
    yield from limiter.finish()


class FilterGraph:
    """Filters of FFmpeg in a row, on mono float32 samples. facts: the metadata of the last
    frame."""

    def __init__(self, rate: int, filters: Iterable[tuple[str, str]]) -> None:
        from av.filter import Graph

        self._rate = rate
        self._position = 0
        self.facts: dict[str, str] = {}
        graph = Graph()
        graph.threads = 1
        self._source = graph.add_abuffer(sample_rate=rate, format="flt", layout="mono")
        last = self._source
        for name, options in (*filters, ("aformat", f"sample_fmts=flt:sample_rates={rate}")):
            node = graph.add(name, options)
            last.link_to(node)
            last = node
        self._sink = graph.add("abuffersink")
        last.link_to(self._sink)
        graph.configure()
        self._graph = graph

    def feed(self, samples: np.ndarray) -> Iterator[np.ndarray]:
        """float32 samples [n] in, what is ready out."""
        if not len(samples):
            return
        from av.audio.frame import AudioFrame

        frame = AudioFrame.from_ndarray(
            np.ascontiguousarray(samples, np.float32)[None], format="flt", layout="mono"
        )
        frame.sample_rate = self._rate
        frame.pts = self._position
        self._position += len(samples)
        self._source.push(frame)
        yield from self._ready()

    def finish(self) -> Iterator[np.ndarray]:
        """The rest."""
        self._source.push(None)
        yield from self._ready()

    def _ready(self) -> Iterator[np.ndarray]:
        from av.error import BlockingIOError, EOFError

        while True:
            try:
                frame: Any = self._sink.pull()
            except (BlockingIOError, EOFError):
                return
            self.facts.update(frame.metadata)
            yield frame.to_ndarray()[0]


def _decibels(value: float, factor: int) -> float:
    if value <= 0:
        return SILENT
    return round(max(SILENT, factor * math.log10(value)), 2)
