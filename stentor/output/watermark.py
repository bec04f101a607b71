"""Watermarks of other packages: `--watermark package:function`. They change samples on their way
out, as these come.

docs/provenance.md has the interface with an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from stentor.arguments import shown, whole
from stentor.config import function_of
from stentor.errors import InvalidRequest, WatermarkError

PROBED = (8_000, 24_000, 48_000)  # Hz: the lowest and the highest that is sent, and the usual one


class Watermark(Protocol):
    """The watermark of one file or stream. Sample n of what it returns stands for sample n of what
    it took.

    look_ahead: samples that it may hold back until more have come.
    """

    look_ahead: int

    def process(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n], which may be written to, with 1 as full scale -> float32 [m] that are
        final."""
        ...

    def flush(self) -> np.ndarray:
        """float32: those that are held back. Nothing follows."""
        ...


Make = Callable[[int], Watermark]
"""Makes the watermark of one file or stream at a rate in Hz."""


def load(watermark: str | Make) -> Make:
    """The function of `package.module:function`, tried on noise. Raises InvalidRequest if it cannot
    be used."""
    make: Make = function_of("watermark", watermark)
    for rate in PROBED:
        _probe(make, rate)
    return make


def _probe(make: Make, rate: int) -> None:
    noise = np.random.default_rng(0).uniform(-0.1, 0.1, rate // 2).astype(np.float32)
    stage = WatermarkStage(make, rate)
    *parts, last = np.split(noise, (1, 8, rate // 50, rate // 4))
    try:
        for part in parts:
            stage.feed(part)
        stage.finish(last)
    except WatermarkError as e:
        raise InvalidRequest("watermark", f"does not work at {rate} Hz: {e.reason}") from e


class WatermarkStage:
    """The watermark of one file or stream, held to what it declares. WatermarkError if it fails:
    from then on nothing comes out, so that no sample passes without it."""

    def __init__(self, make: Make, rate: int) -> None:
        """The watermark itself is made with the first samples: that may take time."""
        self._make = make
        self._rate = rate
        self._watermark: Watermark | None = None
        self._look_ahead = 0
        self._held = 0  # samples that it has taken and not returned
        self._failed = False

    def feed(self, samples: np.ndarray) -> np.ndarray:
        """float32 [n] -> float32 [m]. All but the last `look_ahead` samples have then come out."""
        if self._failed:
            raise WatermarkError("it has failed before")
        if not len(samples):
            return samples
        with self._failing():
            if self._watermark is None:
                self._watermark = self._make(self._rate)
                self._look_ahead = _look_ahead(self._watermark)
            out = _samples("process", self._watermark.process(np.array(samples, np.float32)))
            self._held += len(samples) - len(out)
            if not 0 <= self._held <= self._look_ahead:
                allowed = f"0 to look_ahead = {self._look_ahead}"
                raise WatermarkError(
                    f"process() must hold back {allowed} samples, and holds back {self._held}"
                )
        return out

    def finish(self, samples: np.ndarray) -> np.ndarray:
        """The last samples, and those that it holds back. None after a failure, which was raised
        then."""
        if self._failed:
            return np.zeros(0, np.float32)
        last = self.feed(samples)
        if self._watermark is None:
            return last
        with self._failing():
            out = _samples("flush", self._watermark.flush())
            if len(out) != self._held:
                raise WatermarkError(
                    f"flush() must return the {self._held} samples that are left, got {len(out)}"
                )
        return np.concatenate((last, out))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except Exception as e:
            self._failed = True
            if isinstance(e, WatermarkError):
                raise
            raise WatermarkError(f"{type(e).__name__}: {e}") from e


def _look_ahead(watermark: Watermark) -> int:
    samples = whole(watermark.look_ahead)
    if samples is None or samples < 0:
        raise WatermarkError(
            f"look_ahead must be a number of samples, got {shown(watermark.look_ahead)}"
        )
    return samples


def _samples(method: str, out: object) -> np.ndarray:
    if not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.ndim != 1:
        if isinstance(out, np.ndarray):
            got = f"{out.dtype} {list(out.shape)}"
        else:
            got = type(out).__name__
        raise WatermarkError(f"{method}() must return float32 [n], got {got}")
    if not np.isfinite(out).all():
        raise WatermarkError(f"{method}() returned samples that are NaN or infinite")
    return out.copy()  # its buffer may be used again
