"""Result of speaking: `Speech`."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from stentor.arguments import shown
from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.output.effects import pcm16
from stentor.output.encode import wav_header
from stentor.output.player import Player, library
from stentor.speech import subtitles
from stentor.speech.timing import SegmentTiming, WordTiming, words_of

# suffixes of files that libsndfile writes a comment to
COMMENTED = (".wav", ".flac", ".mp3", ".ogg")


@dataclass(frozen=True, eq=False, repr=False)
class Speech:
    """Audio and the frames that it was decoded from.

    samples: float32 [n] in [-1, 1] at `sample_rate` Hz. frames: the family's frames [T, ...]
    (latents or codes). finish_reason: "stop" (the model ended), "length" (max_frames was reached)
    or "cancelled". It is None for a chunk of a stream that has more. seed: repeats a request that
    runs alone (docs/serving/requests.md, Seeds). segments: when each piece of the text is spoken; a
    chunk has those that ended in it, with times of the stream. words: the same for each word, with
    `word_timestamps`. ignored: pieces of the text that the model cannot speak, such as a script
    that it does not read. A chunk has those that were found since the one before. data: the audio
    as a file of the requested `format`. Those of a stream's chunks are a file together. provenance:
    the line by which programs know that a machine has made it, for the metadata of files. None:
    without.
    """

    samples: np.ndarray
    sample_rate: int
    frames: np.ndarray
    finish_reason: str | None
    seed: int
    segments: tuple[SegmentTiming, ...] = ()
    ignored: tuple[str, ...] = ()
    data: bytes = b""
    provenance: str | None = None

    def __repr__(self) -> str:
        facts = [
            f"{self.duration:.2f} s",
            f"{self.sample_rate} Hz",
            f"finish_reason={self.finish_reason!r}",
        ]
        facts += [f"{len(self.segments)} segments"] if len(self.segments) > 1 else []
        facts += [f"{len(self.data)} bytes"] if self.data else []
        facts += [f"ignored={self.ignored!r}"] if self.ignored else []
        return f"Speech({', '.join(facts)}, seed={self.seed})"

    def _repr_html_(self) -> str:
        """A player, for notebooks."""
        samples = pcm16(self.samples).tobytes()
        header = wav_header(self.sample_rate, len(samples), self.provenance)
        source = base64.b64encode(header + samples).decode()
        return f'<audio controls src="data:audio/wav;base64,{source}"></audio>'

    def play(self) -> None:
        """Play it through the loudspeaker and return when it has ended. Raises InvalidRequest with
        what is missing, such as the extra `play`."""
        player = Player(library(), self.sample_rate, 1.0)
        try:
            player.feed(self.samples)
        finally:
            player.finish()

    @property
    def words(self) -> tuple[WordTiming, ...]:
        return words_of(self.segments)

    def subtitles(self, format: str = "srt", words: bool = False) -> str:
        """Return subtitles of at most two lines, in "srt", "vtt" or "ass".

        Cues end at phrases where the speech was made with `word_timestamps`. words: mark each word;
        in "srt", a cue for each. InvalidRequest for another format.
        """
        if format not in subtitles.FORMATS:
            allowed = ", ".join(subtitles.FORMATS)
            raise InvalidRequest("format", f"must be one of {allowed}, got {shown(format)}")
        return subtitles.FORMATS[format](self.segments, words)

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sample_rate

    @staticmethod
    def check_path(path: str | Path) -> Path:
        """The path of a file that `save` can write. InvalidRequest when it could not write this
        kind."""
        file = path_of("path", path)
        suffix = file.suffix.lower().lstrip(".")
        if suffix.upper() not in soundfile.available_formats():
            raise InvalidRequest(
                "path",
                f"cannot write {suffix or 'a file without suffix'!r}; use .wav, .flac or .mp3",
            )
        return file

    def save(self, path: str | Path) -> None:
        """Write an audio file. The suffix chooses the format (wav, flac, ogg, mp3)."""
        file = self.check_path(path)
        if self.provenance is not None and file.suffix.lower() not in COMMENTED:
            raise InvalidRequest(
                "path", f"{file.suffix} has no room for provenance; use {', '.join(COMMENTED)}"
            )
        kind = file.suffix[1:].upper()
        subtype = soundfile.default_subtype(kind) or "PCM_16"  # which .raw has not
        with soundfile.SoundFile(file, "w", self.sample_rate, 1, subtype, format=kind) as out:
            if self.provenance is not None:
                out.comment = self.provenance
            # not the floats: libsndfile would floor them for 16 bits
            out.write(pcm16(self.samples))
