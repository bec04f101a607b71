"""Reading and checking of reference audio, and resampling on a CPU. libsndfile and soxr do the
work."""

from __future__ import annotations

import hashlib
import io
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import soundfile
import soxr

from stentor.arguments import as_audio_file, shown, whole
from stentor.audio.silence import REFERENCE_PEAK
from stentor.errors import InvalidRequest

QUALITY = "HQ"  # of soxr, as in librosa
MAX_SECONDS = 600  # nothing longer is even decoded
HEAD_BYTES = 4096  # of a wav, in which its audio begins
# energy of a mean of channels over that of unrelated ones, below which they cancel each other out
CANCELLED = 0.1
# over all channels: a few kilobytes of FLAC may hold hours of silence
MAX_SAMPLES = MAX_SECONDS * 48_000 * 2


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

    kept: whether it may come again, so that what is made of it is worth keeping. source: a digest
    of the file that it was read from, where there is one.
    """

    samples: np.ndarray
    rate: int
    kept: bool = True
    source: str = ""

    @cached_property
    def digest(self) -> str:
        """A key of the samples, computed once, or of the file that they are from."""
        return f"{self.source or digest(self.samples)} {self.rate}"

    @cached_property
    def peak(self) -> float:
        """The largest amplitude, computed once and without a copy of minutes of audio."""
        return max(float(self.samples.max(initial=0.0)), -float(self.samples.min(initial=0.0)))

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

    InvalidRequest names `param` and says what is wrong with the audio.
    """
    if not isinstance(reference, Reference):
        raise InvalidRequest(param, f"must be a stentor.Reference, got {type(reference).__name__}")
    if reference.text is not None and not isinstance(reference.text, str):
        raise InvalidRequest(
            f"{param}.text", f"must be a string or None, got {type(reference.text).__name__}"
        )
    return checked(*_read(reference.audio, param), param, seconds)


def checked(samples: np.ndarray, rate: int, param: str, seconds: tuple[float, float]) -> Recording:
    """Check mono samples float32 [n], which nobody changes."""
    check_length(len(samples) / rate, param, seconds)
    low = float(samples.min(initial=0.0))  # without a copy of minutes of audio
    high = float(samples.max(initial=0.0))
    peak = max(high, -low)
    if not math.isfinite(low) or not math.isfinite(high):
        raise InvalidRequest(param, "audio holds samples that are NaN or infinite")
    if peak < REFERENCE_PEAK:
        raise InvalidRequest(param, "audio is silent")
    if peak > 64:
        raise InvalidRequest(param, f"float samples must lie in [-1, 1], got a peak of {peak:.1f}")
    return Recording(np.ascontiguousarray(samples), rate)


def check_length(duration: float, param: str, seconds: tuple[float, float]) -> None:
    """InvalidRequest if so many seconds of audio are not within `seconds` = (shortest, longest)."""
    if not seconds[0] <= duration <= seconds[1]:
        raise InvalidRequest(
            param, f"audio is {duration:.4g} s long, must be {seconds[0]:g} to {seconds[1]:g} s"
        )


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


class Mono:
    """Makes one channel of several: their mean, or the loudest one where they cancel each other
    out, as two in antiphase do. Whether they do is known at the end, so the caller then goes
    through the audio once more."""

    def __init__(self, channel: int | None = None) -> None:
        """channel: the one to take, None for the mean."""
        self._channel = channel
        self._mean = 0.0  # energy of the mean, and of each channel
        self._each = np.zeros(0)

    def of(self, block: np.ndarray) -> np.ndarray:
        """float32 [n] of a block float32 [n, channels]."""
        if block.shape[1] == 1 or self._channel is not None:
            return block[:, self._channel or 0]
        mean: np.ndarray = block.mean(axis=1)
        self._mean += float(mean @ mean)
        each = np.einsum("nc,nc->c", block, block, dtype=np.float64)
        if not len(self._each):
            self._each = each
        else:
            self._each = self._each + each
        return mean

    @property
    def instead(self) -> int | None:
        """The channel to take instead of the mean. None: the mean is good."""
        # energy of the mean of unrelated channels
        independent = self._each.sum() / max(1, len(self._each)) ** 2
        if self._mean < CANCELLED * independent:
            return int(self._each.argmax())
        return None


def read(f: soundfile.SoundFile, out: np.ndarray, mono: Mono) -> int:
    """Read the next frames of an open file into `out` float32 [n], in [-1, 1]. Returns how many
    there were."""
    # As stored: libsndfile makes floats of 16 bits in pieces of 8 KB, each by a call back into
    # Python.
    stored = f.read(len(out), dtype="int16" if f.subtype == "PCM_16" else "float32", always_2d=True)
    scale = np.float32(1 / 32768 if f.subtype == "PCM_16" else 1)
    out = out[: len(stored)]
    if stored.shape[1] == 1:
        np.multiply(stored[:, 0], scale, out=out)
    else:
        out[:] = mono.of(stored * scale)
    return len(out)


def missing_length(head: bytes, size: int) -> int | None:
    """Where in a wav file of `size` bytes the length of its audio stands, if it is 0 and there is
    audio: a program that could not go back has written it. None for other files. libsndfile takes
    any other wrong length."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    at = 12
    while at + 8 <= len(head):
        name = head[at : at + 4]
        length = int.from_bytes(head[at + 4 : at + 8], "little")
        if name == b"data":
            rest = size - at - 8
            behind = head[at + 8 : at + 16]
            # another chunk follows
            empty = behind[:4].isalnum() and int.from_bytes(behind[4:], "little") <= rest - 8
            if length == 0 and rest > 0 and not empty:
                return at + 4
            return None
        at += 8 + length + length % 2
    return None


def with_length(data: bytes) -> bytes:
    """The file, with the length of its audio where it is a wav that has none."""
    at = missing_length(data[:HEAD_BYTES], len(data))
    if at is None:
        return data
    return data[:at] + min(len(data) - at - 4, 2**32 - 1).to_bytes(4, "little") + data[at + 4 :]


def _read(audio: object, param: str) -> tuple[np.ndarray, int]:
    """Mono samples and their rate."""
    if isinstance(audio, tuple):
        return _from_array(audio, param)
    if isinstance(audio, bytes):
        return _decode(io.BytesIO(with_length(audio)), "the given file", param)
    if isinstance(audio, str | Path):
        try:
            path = as_audio_file(audio)
        except ValueError as e:
            raise InvalidRequest(param, str(e)) from None
        return _decode(path, repr(str(path)), param)
    raise InvalidRequest(
        param, f"audio must be a path, bytes or (samples, rate), got {type(audio).__name__}"
    )


def _decode(source: io.BytesIO | Path, name: str, param: str) -> tuple[np.ndarray, int]:
    try:
        if isinstance(source, Path):
            source = _mended(source)
        with soundfile.SoundFile(source) as f:
            if f.frames > MAX_SECONDS * f.samplerate:
                raise InvalidRequest(param, f"{name} is longer than {MAX_SECONDS} s")
            if f.frames * f.channels > MAX_SAMPLES:
                raise InvalidRequest(
                    param, f"{name} holds {f.frames * f.channels} samples, at most {MAX_SAMPLES}"
                )
            samples = np.empty(max(0, f.frames), np.float32)
            mono = Mono()
            count = read(f, samples, mono)
            if (channel := mono.instead) is not None:
                f.seek(0)
                count = read(f, samples, Mono(channel))
            return samples[:count], f.samplerate
    except (soundfile.LibsndfileError, RuntimeError, OSError) as e:
        # which names the file again
        if isinstance(e, soundfile.LibsndfileError):
            why = e.error_string
        else:
            why = e
        raise InvalidRequest(
            param, f"{name} is not readable audio (wav, flac, ogg, mp3): {why}"
        ) from e


def _mended(path: Path) -> Path | io.BytesIO:
    """The file, or its content with the length of its audio where it is a wav that has none."""
    with path.open("rb") as f:
        if missing_length(f.read(HEAD_BYTES), path.stat().st_size) is None:
            return path
        f.seek(0)
        return io.BytesIO(with_length(f.read(MAX_SAMPLES * 4)))


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
        mean = mono.of(samples)
        if mono.instead is None:
            samples = mean
        else:
            samples = Mono(mono.instead).of(samples)
    return samples, rate
