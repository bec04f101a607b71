"""What speaking gives: `Speech`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from stentor.config import path_of
from stentor.errors import InvalidRequest
from stentor.speech.timing import SegmentTiming, WordTiming, words_of


@dataclass(frozen=True, eq=False)
class Speech:
    """Audio and the frames that it was decoded from.

    samples: float32 [n] in [-1, 1] at `sample_rate` Hz. frames: the family's frames [T, ...] (latents or codes).
    finish_reason: "stop" (the model ended), "length" (max_frames was reached) or "cancelled". It is None for a chunk
    of a stream that has more. seed: repeats a request that runs alone (docs/serving.md, Seeds). segments: when each
    piece of the text is spoken. A chunk has those that ended in it, with times of the whole stream. words: the same for
    each word, where `word_timestamps` asks for them.
    """

    samples: np.ndarray
    sample_rate: int
    frames: np.ndarray
    finish_reason: str | None
    seed: int
    segments: tuple[SegmentTiming, ...] = ()

    @property
    def words(self) -> tuple[WordTiming, ...]:
        return words_of(self.segments)

    @property
    def duration(self) -> float:
        """Seconds."""
        return len(self.samples) / self.sample_rate

    @staticmethod
    def check_path(path: str | Path) -> Path:
        """The path of a file that `save` can write. InvalidRequest when it could not write this kind."""
        file = path_of("path", path)
        suffix = file.suffix.lower().lstrip(".")
        if suffix.upper() not in soundfile.available_formats():
            raise InvalidRequest("path", f"cannot write {suffix or 'a file without suffix'!r}; use .wav, .flac or .mp3")
        return file

    def save(self, path: str | Path) -> None:
        """Write an audio file. The suffix chooses the format (wav, flac, ogg, mp3)."""
        soundfile.write(self.check_path(path), self.samples, self.sample_rate)
