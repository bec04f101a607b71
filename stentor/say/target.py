"""Where the audio of `stentor say` goes: a file or standard output. Checked before anything is loaded."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.say.flags import FORMATS

if TYPE_CHECKING:
    import numpy as np

    from stentor.output.marks import Marks

PIPED = ("wav", "raw", "mp3", "flac", "opus", "aac", "ulaw", "alaw")  # formats that are written without going back
HEADERLESS = ("raw", "ulaw", "alaw")  # formats that do not say their rate
PLAIN = ("wav", *HEADERLESS)  # formats that need no PyAV
WRITTEN = (*PLAIN, "flac", "mp3", "ogg")  # the same, in a file
SUFFIXES = {f".{name}": name for name in FORMATS} | {".pcm": "raw"}


@dataclass(frozen=True)
class Target:
    """A checked output. path None: standard output."""

    path: Path | None
    format: str


class Sink(Protocol):
    """Takes float32 samples [n] at the model's rate."""

    def feed(self, samples: np.ndarray) -> None: ...

    def finish(self) -> None: ...


def check(output: str | None, format: str | None, play: bool) -> Target | None:
    """The output that the flags name, or None where the audio is only played. InvalidRequest says what cannot be."""
    if output is None and play:
        return None
    name = "out." + (format or "wav") if output is None else output
    if name == "-":
        return Target(None, _piped(format or "wav"))
    path = path_of("output", name)
    if not path.parent.is_dir():
        raise InvalidRequest("output", f"folder {str(path.parent)!r} does not exist")
    known = format or SUFFIXES.get(path.suffix.lower())
    if known is None:
        raise InvalidRequest("output", f"cannot write {path.suffix or 'a file without suffix'!r}; {_known()}")
    return Target(path, available(known, WRITTEN))


def _piped(format: str) -> str:
    if format not in PIPED:
        raise InvalidRequest("format", f"{format} cannot be written to a pipe; use {', '.join(PIPED)}")
    if sys.stdout.isatty():
        raise InvalidRequest("output", "standard output is a terminal: pipe it into a program or a file")
    return available(format, PLAIN)


def available(format: str, without: tuple[str, ...]) -> str:
    """The format, if PyAV is installed or it is written without."""
    if format not in without and importlib.util.find_spec("av") is None:
        allowed = ", ".join(without)
        raise InvalidRequest("format", f"{format} needs PyAV: pip install 'stentor[audio]'. Without it: {allowed}")
    return format


def marks(provenance: bool, watermark: str | None, model: str | None, format: str | None) -> Marks:
    """The marks that flags ask for, in files of `format` (None: audio is only played). InvalidRequest for a format
    without metadata, and for a watermark that does not work."""
    if provenance and format in HEADERLESS:
        raise InvalidRequest("provenance", f"{format} holds samples only; use a format with metadata, such as wav")
    from stentor.output.marks import Marks

    return Marks.of(provenance, watermark, model)


def _known() -> str:
    return "use " + ", ".join(SUFFIXES)


def open_sink(target: Target, rate: int, speed: float, marks: Marks) -> Sink:
    """The sink of a target for audio of `rate` Hz. A file is made with the first samples."""
    if target.path is None:
        return PipeSink(target.format, rate, speed, marks)
    return FileSink(target.path, target.format, rate, speed, marks)


class FileSink:
    """A file that grows with the speech. What has been spoken is in it also when the rest fails."""

    def __init__(self, path: Path, format: str, rate: int, speed: float, marks: Marks) -> None:
        from stentor.output.effects import EffectChain
        from stentor.output.encode import Encoder, legal_rate

        self.path, self.format = path, _container(format)
        self.rate = legal_rate(self.format, rate)
        self._chain = EffectChain(rate, self.rate, speed, marks.watermark)
        self._comment = marks.comment
        self._file: IO[bytes] | None = None
        self._encoder: Encoder | None = None

    def feed(self, samples: np.ndarray) -> None:
        from stentor.output.encode import file_encoder

        if self._encoder is None:
            self._file = self.path.open("wb")
            self._encoder = file_encoder(self.format, self.rate, self._file, self._comment)
        self._encoder.feed(self._chain.feed(samples))

    def finish(self) -> None:
        """Complete the file."""
        if self._encoder is None or self._file is None:
            return
        self._encoder.feed(self._chain.finish())
        self._encoder.finish()
        self._file.close()


class PipeSink:
    """Standard output."""

    def __init__(self, format: str, rate: int, speed: float, marks: Marks) -> None:
        from stentor.output.effects import EffectChain
        from stentor.output.encode import encoder, legal_rate

        name = _container(format)
        target = legal_rate(name, rate)
        self._chain = EffectChain(rate, target, speed, marks.watermark)
        self._encoder = encoder(name, target, whole=False, comment=marks.comment)

    def feed(self, samples: np.ndarray) -> None:
        self._write(self._encoder.feed(self._chain.feed(samples)))

    def finish(self) -> None:
        self._write(self._encoder.feed(self._chain.finish()) + self._encoder.finish())

    @staticmethod
    def _write(data: bytes) -> None:
        if data:
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _container(format: str) -> str:
    return "pcm" if format == "raw" else format
