"""Reference audio: read, checked and resampled on a CPU."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import soxr

from stentor.arguments import as_audio_file, shown, whole
from stentor.audio.channels import Mono
from stentor.audio.opened import BadAudio
from stentor.audio.silence import REFERENCE_PEAK
from stentor.errors import InvalidRequest

QUALITY = "HQ"  # of soxr, as in librosa


@dataclass(frozen=True, eq=False)
class Reference:
    """Speech to imitate or to continue.

    audio: a path, the bytes of an audio file, or (samples, rate) with samples [n] or [n, channels],
    float in [-1, 1] or int16. text: its transcript, where the mode needs one.
    """

    audio: str | Path | bytes | tuple[np.ndarray, int]
    text: str | None = None


@dataclass(frozen=True, eq=False)
class Recording:
    """Speech that was read and checked: mono float32 samples [n] at `rate` Hz, which is the file's.

    cacheable: whether it may come again, so that what is made of it is worth keeping. source: a
    digest of the file that it was read from, where there is one.
    """

    samples: np.ndarray
    rate: int
    cacheable: bool = True
    source: str = ""

    @cached_property
    def digest(self) -> str:
        """A key of the samples, computed once, or of the file that they are from."""
        return f"{self.source or digest(self.samples)} {self.rate}"

    @cached_property
    def peak(self) -> float:
        """The largest amplitude around the mean: an offset is no sound. Computed once."""
        return largest(self.samples, float(self.samples.mean(dtype=np.float64)))

    def at(self, rate: int) -> np.ndarray:
        """Samples float32 [ceil(n * rate / self.rate)]. To resample takes milliseconds: for a
        thread."""
        return resample(self.samples, self.rate, rate)


def digest(a: np.ndarray) -> str:
    """A key for an array's content, shape and dtype."""
    content = np.ascontiguousarray(a).reshape(-1).view(np.uint8).data
    return hashlib.sha256(content).hexdigest() + str((a.shape, a.dtype))


def load(reference: Reference, param: str, seconds: tuple[float, float]) -> Recording:
    """A reference from `seconds` = (shortest, longest) of audio.

    Raises InvalidRequest, naming `param` and the fault.
    """
    if not isinstance(reference, Reference):
        raise InvalidRequest(param, f"must be a stentor.Reference, got {type(reference).__name__}")
    if reference.text is not None and not isinstance(reference.text, str):
        raise InvalidRequest(
            f"{param}.text", f"must be a string or None, got {type(reference.text).__name__}"
        )
    samples, rate = _read(reference.audio, param, seconds[1])
    return checked(samples, rate, param, seconds)


def checked(samples: np.ndarray, rate: int, param: str, seconds: tuple[float, float]) -> Recording:
    """Check mono samples float32 [n], which nobody changes: their length, level and values."""
    duration = len(samples) / rate
    shortest, longest = seconds
    if not shortest <= duration <= longest:
        raise InvalidRequest(
            param, f"audio is {duration:.4g} s long, must be {shortest:g} to {longest:g} s"
        )
    loudest = largest(samples, 0.0)
    if not math.isfinite(loudest):
        raise InvalidRequest(param, "audio holds samples that are NaN or infinite")
    if loudest > 64:
        raise InvalidRequest(
            param, f"float samples must lie in [-1, 1], got a peak of {loudest:.1f}"
        )
    recording = Recording(np.ascontiguousarray(samples), rate)
    if recording.peak < REFERENCE_PEAK:
        raise InvalidRequest(param, "audio is silent")
    return recording


def largest(samples: np.ndarray, offset: float) -> float:
    """The largest distance of samples from `offset`, without a copy of minutes of audio."""
    low = float(samples.min(initial=offset))
    high = float(samples.max(initial=offset))
    return max(high - offset, offset - low)


def resample(samples: np.ndarray, source: int, target: int) -> np.ndarray:
    """float32 samples [ceil(n * target / source)]: soxr HQ with the length rule of librosa.load, so
    that features of references match those of the official packages."""
    if source == target:
        return np.ascontiguousarray(samples, dtype=np.float32)
    out = soxr.resample(samples.astype(np.float32, copy=False), source, target, quality=QUALITY)
    length = math.ceil(len(samples) * target / source)
    if len(out) < length:
        out = np.pad(out, (0, length - len(out)))
    return np.ascontiguousarray(out[:length], dtype=np.float32)


def _read(audio: object, param: str, longest: float) -> tuple[np.ndarray, int]:
    """Mono samples and their rate."""
    if isinstance(audio, tuple):
        return _from_array(audio, param)
    if isinstance(audio, bytes):
        return _decoded(audio, "the given file", param, longest)
    if not isinstance(audio, str | Path):
        raise InvalidRequest(
            param, f"audio must be a path, bytes or (samples, rate), got {type(audio).__name__}"
        )
    try:
        path = as_audio_file(audio)
    except ValueError as e:
        raise InvalidRequest(param, str(e)) from None
    return _decoded(path, repr(str(path)), param, longest)


def _decoded(
    content: bytes | Path, name: str, param: str, longest: float
) -> tuple[np.ndarray, int]:
    """name: of the file in messages."""
    from stentor.audio.decoding import decode  # libraries that few processes need

    try:
        return decode(content, longest)
    except BadAudio as e:
        raise InvalidRequest(param, f"{name} {e}") from e
    except OSError as e:
        raise InvalidRequest(param, f"{name} cannot be read: {e.strerror or e}") from e


def _from_array(audio: tuple[object, ...], param: str) -> tuple[np.ndarray, int]:
    if len(audio) != 2:
        raise InvalidRequest(param, "audio as a tuple must be (samples, rate)")
    try:
        samples = np.asarray(audio[0])
        rate = whole(audio[1])
    except ValueError:  # rows of different lengths
        raise InvalidRequest(param, "samples must have shape [n] or [n, channels]") from None
    if rate is None or not 1000 <= rate <= 768_000:
        raise InvalidRequest(
            param, f"sample rate must be an integer from 1000 to 768000 Hz, got {shown(audio[1])}"
        )
    if samples.ndim not in (1, 2) or (samples.ndim == 2 and not 1 <= samples.shape[1] <= 16):
        raise InvalidRequest(
            param, f"samples must have shape [n] or [n, channels], got {list(samples.shape)}"
        )
    if samples.dtype == np.int16:
        samples = samples.astype(np.float32) / 32768
    elif not np.issubdtype(samples.dtype, np.floating):
        raise InvalidRequest(param, f"samples must be float or int16, got {samples.dtype}")
    samples = samples.astype(np.float32)
    if samples.ndim == 2:
        mono = Mono()
        mean = mono.mix(samples)
        if mono.instead is None:
            samples = mean
        else:
            samples = samples[:, mono.instead]
    return samples, rate
