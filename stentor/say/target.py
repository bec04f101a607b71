"""Where the audio of `stentor say` goes: a file, a pipe or standard output. Checked before anything
is loaded."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.flags import AUTO, FORMATS, OFF
from stentor.host.installed import pip_install
from stentor.output.tags import NO_TAGS, ChapterMark, Tags

if TYPE_CHECKING:
    import numpy as np

    from stentor.output.encode import Encoder
    from stentor.output.marks import Marks

PIPED = ("wav", "raw", "mp3", "flac", "opus", "aac", "ulaw", "alaw")
"""Formats that are written without going back."""

HEADERLESS = ("raw", "ulaw", "alaw")
"""Formats that do not state their rate."""

PLAIN = ("wav", *HEADERLESS)
"""Formats of streams that need no PyAV."""

WRITTEN = (*PLAIN, "flac", "mp3", "ogg")
"""Formats of files that need no PyAV."""

SUFFIXES = {f".{name}": name for name in FORMATS} | {".pcm": "raw"}
PLAYER_LUFS = -16.0
"""Loudness that players and podcast services expect of speech."""
FILE_HOLD_SECONDS = 60
"""Seconds of a file whose loudness sets the gain of all of it."""
LIVE_HOLD_SECONDS = 4
"""Seconds that set it for pipes and the loudspeaker, which should not wait for long."""
OGG = ("ogg", "opus")  # both may be named .ogg


@dataclass(frozen=True)
class Target:
    """A checked output. path: None for standard output."""

    path: Path | None
    format: str


def check(output: str | None, format: str | None, play: bool) -> Target | None:
    """The output that the flags name, or None where the audio is only played. Raises InvalidRequest
    for what cannot be."""
    if output is None and play:
        return None
    if output is None:
        output = "out." + (format or "wav")
    if output == "-":
        _check_standard_output()
        return Target(None, _piped(format or "wav"))
    path = path_of("output", output)
    if path.is_dir():
        raise InvalidRequest(
            "output", f"{output!r} is a folder; name a file in it, such as {path / 'out.wav'}"
        )
    if not path.parent.is_dir():
        raise InvalidRequest("output", f"folder {str(path.parent)!r} does not exist")
    suffix = path.suffix.lower()
    _check_suffix(path, format)
    if is_stream(path):
        return Target(path, _piped(format or SUFFIXES.get(suffix) or "wav"))
    format_name = format or SUFFIXES.get(suffix)
    if format_name is None:
        raise InvalidRequest(
            "output",
            f"cannot write {suffix or 'a file without suffix'!r}; use {', '.join(SUFFIXES)}",
        )
    return Target(path, available(format_name, WRITTEN))


def is_stream(path: Path) -> bool:
    """Whether a path names a pipe, a device or a socket, which cannot be sought."""
    return path.exists() and not path.is_file()


def _check_suffix(path: Path, format: str | None) -> None:
    """InvalidRequest for a format that the suffix contradicts: players go by the suffix."""
    by_suffix = SUFFIXES.get(path.suffix.lower())
    if format is None or by_suffix is None or by_suffix == format:
        return
    if by_suffix in OGG and format in OGG:
        return
    raise InvalidRequest(
        "format",
        f"is {format}, and {path.name!r} ends in {path.suffix}; "
        f"name it {path.with_suffix('.' + format).name!r} or leave --format out",
    )


def _check_standard_output() -> None:
    if sys.__stdout__ is None:
        raise InvalidRequest("output", "standard output is closed")
    if sys.stdout.isatty():
        raise InvalidRequest(
            "output", "standard output is a terminal: pipe it into a program or a file"
        )


def _piped(format: str) -> str:
    if format not in PIPED:
        raise InvalidRequest(
            "format", f"{format} cannot be written to a pipe; use {', '.join(PIPED)}"
        )
    return available(format, PLAIN)


def available(format: str, without: tuple[str, ...]) -> str:
    """The format, if PyAV is installed or it is written without."""
    if format not in without and importlib.util.find_spec("av") is None:
        allowed = ", ".join(without)
        raise InvalidRequest(
            "format", f"{format} needs PyAV: {pip_install('audio')}. Without it: {allowed}"
        )
    return format


def marks(provenance: bool, watermark: str | None, model: str | None, format: str | None) -> Marks:
    """The marks from flags, in files of `format` (None: audio is only played).
    InvalidRequest for a format without metadata, and for a watermark that does not work."""
    if provenance and format in HEADERLESS:
        raise InvalidRequest(
            "provenance", f"{format} holds samples only; use a format with metadata, such as wav"
        )
    from stentor.output.marks import Marks

    return Marks.of(provenance, watermark, model)


class Sink(Protocol):
    """Takes float32 samples [n], and completes what it has made of them."""

    def feed(self, samples: np.ndarray) -> None: ...

    def finish(self) -> None: ...


class Levelled:
    """A sink at a loudness."""

    def __init__(self, sink: Sink, rate: int, lufs: float, hold: float) -> None:
        """rate: Hz of the samples. hold: seconds whose loudness sets the gain."""
        from stentor.output.loudness import Leveller

        self._sink = sink
        self._leveller = Leveller(rate, lufs, hold)

    def feed(self, samples: np.ndarray) -> None:
        levelled = self._leveller.feed(samples)
        if len(levelled):
            self._sink.feed(levelled)

    def finish(self) -> None:
        """Complete the sink."""
        levelled = self._leveller.finish()
        try:
            if len(levelled):
                self._sink.feed(levelled)
        finally:
            self._sink.finish()


def levelled(sink: Sink, loudness: float | str, rate: int, live: bool) -> Sink:
    """The sink at a loudness, in LUFS. AUTO: that of players for a file, as it is for live audio.
    OFF: as it is."""
    if loudness == OFF or (live and loudness == AUTO):
        return sink
    lufs = PLAYER_LUFS if loudness == AUTO else float(loudness)
    hold = LIVE_HOLD_SECONDS if live else FILE_HOLD_SECONDS
    return Levelled(sink, rate, lufs, hold)


class Output:
    """A file that grows with the speech, or a stream (path None: standard output).

    What has been spoken is in it also when the rest fails. A file is made with the first samples.
    rate: Hz of the samples that are written. serial: of an Ogg stream.
    """

    def __init__(
        self,
        path: Path | None,
        format: str,
        rate: int,
        marks: Marks,
        serial: int = 1,
        tags: Tags = NO_TAGS,
    ) -> None:
        from stentor.output.effects import EffectChain
        from stentor.output.encode import legal_rate

        self._path = path
        self._format = "pcm" if format == "raw" else format
        self._serial = serial
        self._tags = tags
        self.rate = legal_rate(self._format, rate)
        self._chain = EffectChain(rate, self.rate, 1.0, marks.watermark)
        self._comment = marks.comment
        self._opened = self._open() if path is None else None

    def feed(self, samples: np.ndarray) -> None:
        self._opened = self._opened or self._open()
        self._write(*self._opened, self._chain.feed(samples))

    def mark_chapters(self, marks: Sequence[ChapterMark]) -> None:
        """Note the chapters of an m4b whose samples have all been fed."""
        from stentor.output.encode import Compressed

        if self._opened is not None and isinstance(self._opened[0], Compressed):
            self._opened[0].mark_chapters(marks)

    def finish(self) -> None:
        """Complete it."""
        if self._opened is None:
            return
        encoder, file = self._opened
        try:
            self._write(encoder, file, self._chain.finish())
        finally:
            file.write(encoder.finish())
            file.flush()
            if self._path is not None:
                file.close()

    def _open(self) -> tuple[Encoder, IO[bytes]]:
        from stentor.output.encode import encoder

        if self._path is not None and not is_stream(self._path):
            file = self._path.open("wb")
            return self._file_encoder(file), file
        streamed = encoder(
            self._format, self.rate, whole=False, comment=self._comment, serial=self._serial
        )
        if self._path is None:
            return streamed, sys.stdout.buffer
        return streamed, self._path.open("wb")

    def _file_encoder(self, file: IO[bytes]) -> Encoder:
        from stentor.output.encode import file_encoder

        return file_encoder(self._format, self.rate, file, self._comment, self._serial, self._tags)

    @staticmethod
    def _write(encoder: Encoder, file: IO[bytes], samples: np.ndarray) -> None:
        if data := encoder.feed(samples):  # nothing where the encoder writes into the file
            file.write(data)
            file.flush()
