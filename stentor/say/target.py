"""Where the audio of `stentor say` goes: a file or standard output. Checked before anything is loaded."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.flags import FORMATS

if TYPE_CHECKING:
    import numpy as np

    from stentor.output.encode import Encoder
    from stentor.output.marks import Marks

PIPED = (
    "wav",
    "raw",
    "mp3",
    "flac",
    "opus",
    "aac",
    "ulaw",
    "alaw",
)  # formats that are written without going back
HEADERLESS = ("raw", "ulaw", "alaw")  # formats that do not say their rate
PLAIN = ("wav", *HEADERLESS)  # formats that need no PyAV
WRITTEN = (*PLAIN, "flac", "mp3", "ogg")  # the same, in a file
SUFFIXES = {f".{name}": name for name in FORMATS} | {".pcm": "raw"}


@dataclass(frozen=True)
class Target:
    """A checked output. path None: standard output."""

    path: Path | None
    format: str


def check(output: str | None, format: str | None, play: bool) -> Target | None:
    """The output that the flags name, or None where the audio is only played. InvalidRequest says what cannot be."""
    if output is None and play:
        return None
    if output is None:
        name = "out." + (format or "wav")
    else:
        name = output
    if name == "-":
        return Target(None, _piped(format or "wav"))
    path = path_of("output", name)
    if not path.parent.is_dir():
        raise InvalidRequest("output", f"folder {str(path.parent)!r} does not exist")
    known = format or SUFFIXES.get(path.suffix.lower())
    if known is None:
        raise InvalidRequest(
            "output",
            f"cannot write {path.suffix or 'a file without suffix'!r}; use {', '.join(SUFFIXES)}",
        )
    return Target(path, available(known, WRITTEN))


def _piped(format: str) -> str:
    if format not in PIPED:
        raise InvalidRequest(
            "format", f"{format} cannot be written to a pipe; use {', '.join(PIPED)}"
        )
    if sys.stdout.isatty():
        raise InvalidRequest(
            "output", "standard output is a terminal: pipe it into a program or a file"
        )
    return available(format, PLAIN)


def available(format: str, without: tuple[str, ...]) -> str:
    """The format, if PyAV is installed or it is written without."""
    if format not in without and importlib.util.find_spec("av") is None:
        allowed = ", ".join(without)
        raise InvalidRequest(
            "format", f"{format} needs PyAV: pip install 'stentor[audio]'. Without it: {allowed}"
        )
    return format


def marks(provenance: bool, watermark: str | None, model: str | None, format: str | None) -> Marks:
    """The marks that flags ask for, in files of `format` (None: audio is only played). InvalidRequest for a format
    without metadata, and for a watermark that does not work."""
    if provenance and format in HEADERLESS:
        raise InvalidRequest(
            "provenance", f"{format} holds samples only; use a format with metadata, such as wav"
        )
    from stentor.output.marks import Marks

    return Marks.of(provenance, watermark, model)


class Output:
    """A file that grows with the speech, or standard output (path None). What has been spoken is in it also when the
    rest fails. A file is made with the first samples. rate: Hz of what is written."""

    def __init__(
        self, path: Path | None, format: str, rate: int, speed: float, marks: Marks
    ) -> None:
        from stentor.output.effects import EffectChain
        from stentor.output.encode import legal_rate

        self._path = path
        if format == "raw":
            self._format = "pcm"
        else:
            self._format = format
        self.rate = legal_rate(self._format, rate)
        self._chain = EffectChain(rate, self.rate, speed, marks.watermark)
        self._comment = marks.comment
        self._opened = self._open() if path is None else None

    def feed(self, samples: np.ndarray) -> None:
        self._opened = self._opened or self._open()
        self._write(*self._opened, self._chain.feed(samples))

    def finish(self) -> None:
        """Complete it."""
        if self._opened is None:
            return
        encoder, file = self._opened
        self._write(encoder, file, self._chain.finish())
        file.write(encoder.finish())
        file.flush()
        if self._path is not None:
            file.close()

    def _open(self) -> tuple[Encoder, IO[bytes]]:
        from stentor.output.encode import encoder, file_encoder

        if self._path is None:
            return encoder(
                self._format, self.rate, whole=False, comment=self._comment
            ), sys.stdout.buffer
        file = self._path.open("wb")
        return file_encoder(self._format, self.rate, file, self._comment), file

    @staticmethod
    def _write(encoder: Encoder, file: IO[bytes], samples: np.ndarray) -> None:
        if data := encoder.feed(samples):  # nothing where the encoder writes into the file
            file.write(data)
            file.flush()
