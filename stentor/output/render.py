"""Joined samples as a caller of the Python API wants them: faster or slower, and as the bytes of a
format."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import numpy as np

from stentor.errors import InvalidRequest
from stentor.host.installed import pip_install
from stentor.output.effects import EffectChain
from stentor.output.encode import CONTAINERS, Encoder, encoder, legal_rate
from stentor.output.marks import NO_MARKS, Marks

SLOWEST = 0.25
FASTEST = 4.0


@dataclass(frozen=True)
class Output:
    """Speed by which samples are played faster, the format of their bytes (None: there are none),
    and their marks."""

    speed: float = 1.0
    format: str | None = None
    marks: Marks = NO_MARKS

    @classmethod
    def checked(cls, speed: object, format: object, marks: Marks = NO_MARKS) -> Output:
        """Check a caller's choices, None for the default. Raises InvalidRequest with what is
        allowed."""
        if speed is None:
            speed = 1.0
        if (
            isinstance(speed, bool)
            or not isinstance(speed, int | float)
            or not SLOWEST <= speed <= FASTEST
        ):
            raise InvalidRequest(
                "speed", f"must be a number from {SLOWEST:g} to {FASTEST:g}, got {speed!r:.80}"
            )
        if format is None:
            return cls(float(speed), None, marks)
        name = format.lower() if isinstance(format, str) else format
        if not isinstance(name, str) or name not in CONTAINERS:
            raise InvalidRequest(
                "format", f"must be one of {', '.join(CONTAINERS)}, got {format!r:.80}"
            )
        if CONTAINERS[name].codec and importlib.util.find_spec("av") is None:
            raise InvalidRequest("format", f"{name} needs PyAV: {pip_install('audio')}")
        return cls(float(speed), name, marks)


AS_IT_IS = Output()


class Rendering:
    """Renders samples at `rate` Hz part by part. whole: the bytes come at the end, as a file with
    its length. serial: of an Ogg stream."""

    def __init__(self, output: Output, rate: int, whole: bool, serial: int = 1) -> None:
        self._stretch = EffectChain(rate, rate, output.speed, output.marks.watermark)
        self._encoder: Encoder | None = None
        if output.format is not None:
            target = legal_rate(output.format, rate)
            self._resample = EffectChain(rate, target, 1.0)
            self._encoder = encoder(
                output.format, target, whole, comment=output.marks.comment, serial=serial
            )

    def feed(self, samples: np.ndarray, last: bool) -> tuple[np.ndarray, bytes]:
        """float32 [n] -> float32 [m] at the same rate, and the bytes that are final now."""
        samples = self._stretch.feed(samples)
        if last:
            samples = np.concatenate((samples, self._stretch.finish()))
        if self._encoder is None:
            return samples, b""
        data = self._encoder.feed(self._resample.feed(samples))
        if last:
            data += self._encoder.feed(self._resample.finish()) + self._encoder.finish()
        return samples, data
