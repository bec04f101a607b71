"""A family without steps for tests of the engine: a tone per letter, in whole pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import numpy as np

from stentor.config import EngineConfig
from stentor.engine.engine import Engine
from stentor.engine.running_pieces.side import PieceSide
from stentor.layers.types import Column
from stentor.models.base import KVSpec, ModelSpec, Prompt, Prompted
from stentor.models.codec_timing import PieceTiming
from stentor.models.info import BY_DURATIONS
from stentor.models.piece_model import PieceRow, Planned

HOP = 10
FRAMES = 2  # of each letter
BREAKS = "!"
"""A text with this fails when it is spoken."""


class Letters(Prompted):
    """Each letter lasts two frames, whose samples are its code times the seed. `spoken` are the
    texts of each call."""

    def __init__(self, timing: PieceTiming) -> None:
        self.timing = timing
        self.spoken: list[list[str]] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.begun = threading.Event()
        self.spec = ModelSpec(
            family="letters",
            sample_rate=100,
            hop=HOP,
            frame=Column(dtype="int32"),
            kv=KVSpec(0, 0, 0),
            hidden=(),
            max_model_len=100,
            draws=0,
            columns={},
            prompt_rows={"token": Column(dtype="int64")},
            options={},
            stop_keeps_frame=True,
            reference_rate=100,
            reference_seconds=(0.0, 0.0),
            takes_reference=False,
            takes_instructions=False,
            alignment=BY_DURATIONS,
            codec_timing=timing,
        )

    def warm_up(self) -> None:
        """Nothing runs cold."""

    def plan(self, rows: Sequence[PieceRow]) -> list[Planned]:
        return [self._planned(row) for row in rows]

    def _planned(self, row: PieceRow) -> Planned:
        places = np.repeat(np.arange(row.prompt.length), FRAMES)
        return Planned(places.astype(np.int32), places, ())

    def speak(self, rows: Sequence[PieceRow]) -> list[np.ndarray]:
        texts = ["".join(map(chr, row.prompt.rows["token"])) for row in rows]
        self.spoken.append(texts)
        self.begun.set()
        assert self.goes_on.wait(60)
        if any(BREAKS in text for text in texts):
            raise ValueError("it breaks")
        return [samples(text, row.seed) for text, row in zip(texts, rows, strict=True)]


def samples(text: str, seed: int) -> np.ndarray:
    """Samples of a text: float32 [n]."""
    letters = np.array([ord(c) for c in text], np.float32)
    return np.repeat(letters / 1000 + seed / 10_000, FRAMES * HOP)


def prompt(text: str) -> Prompt:
    """A text as a prompt. Its words are between its spaces."""
    words = []
    at = 0
    for word in text.split(" "):
        words.append(range(at, at + len(word)))
        at += len(word) + 1
    return Prompt(
        rows={"token": np.array([ord(c) for c in text], np.int64)},
        frames=np.zeros(0, np.int32),
        frame_at=np.zeros(0, np.int64),
        columns={"text_start": 0, "text_end": len(text)},
        max_frames=1000,
        min_frames=0,
        codec_prefix=np.zeros(0, np.int32),
        words=tuple(words),
    )


def letters(
    timing: PieceTiming, **config: int
) -> tuple[Letters, Engine, Callable[[str, bool], object]]:
    """A model, its engine, and what submits a text, streamed or not, with seed 1."""
    model = Letters(timing)
    settings = EngineConfig(**config)
    engine = Engine(model, PieceSide(model, timing, settings), settings)
    return model, engine, lambda text, streaming: engine.submit(prompt(text), 1, streaming)
