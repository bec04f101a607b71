"""Kokoro by a graph of onnxruntime (implements models.piece_model.PieceModel).

The graph is the released one in 8 bits, for one piece of text. It is cut where the durations are
known: a piece is planned by its first part and spoken by its second.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.errors import CheckpointError
from stentor.graphs.onnx_file import FLOAT, INT64, OnnxFile
from stentor.graphs.sessions import Session, value_of
from stentor.host.machine import cpus
from stentor.models.base import Prompted
from stentor.models.codec_timing import PieceTiming
from stentor.models.kokoro import GRAPH
from stentor.models.kokoro.durations import planned
from stentor.models.kokoro.prompt import PromptBuilder
from stentor.models.kokoro.spec import HOP, make_spec
from stentor.models.kokoro.voices import Voices, of_folder
from stentor.models.option_names import check_load_options
from stentor.models.piece_model import PieceRow, Planned

DURATIONS = "/encoder/Clip_output_0"
PROSODY = "/encoder/predictor/text_encoder/Concat_4_output_0"
TEXT = "/encoder/text_encoder/Transpose_2_output_0"
"""Values of the graph between its halves: frames of each sign, and features of the text for pitch
and for sound."""
AUDIO = "audio"
THREADS = 4
"""CPU threads of one call. More are hardly faster: where there are more, calls run side by side."""


class KokoroGraphs(Prompted):
    """A loaded folder. A frame is the place in the text that it speaks."""

    def __init__(self, voices: Voices, plan: Session, speak: Session, timing: PieceTiming) -> None:
        self.timing = timing
        self.spec = make_spec(voices.names, timing)
        self.prompts = PromptBuilder(voices, self.spec.default_voice or voices.names[0])
        self._plan = plan
        self._speak = speak

    def warm_up(self) -> None:
        """A graph runs on a CPU."""

    def plan(self, rows: Sequence[PieceRow]) -> list[Planned]:
        return [self._planned(row) for row in rows]

    def _planned(self, row: PieceRow) -> Planned:
        columns = row.prompt.columns
        style = value_of(columns["style"][None])
        feeds = {
            "tokens": value_of(row.prompt.rows["token"][None]),
            "style": style,
            "speed": value_of(np.array([columns["speed"]], np.float32)),
        }
        durations, prosody, text = self._plan(feeds)
        counts = durations.numpy()[0].astype(np.int64)
        features = (style, durations, prosody, text)
        return planned(row.prompt, counts, features)

    def speak(self, rows: Sequence[PieceRow]) -> list[np.ndarray]:
        return [self._spoken(row) for row in rows]

    def _spoken(self, row: PieceRow) -> np.ndarray:
        assert row.planned is not None, "a row is planned before it is spoken"
        names = ("style", DURATIONS, PROSODY, TEXT)
        (audio,) = self._speak(dict(zip(names, row.planned.features, strict=True)))
        samples: np.ndarray = audio.numpy()[: len(row.planned.frames) * HOP]
        return samples.clip(-1.0, 1.0)


def build(folder: Path, eight_bits: bool, options: Mapping[str, Any]) -> KokoroGraphs:
    """Load a folder with model.onnx and voices/*.bin. Raises CheckpointError and InvalidRequest."""
    check_load_options(options, ())
    voices = of_folder(folder)
    file = folder / GRAPH
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = memoryview(data)
        try:
            halves = _halves(view)
        except CheckpointError as e:
            raise CheckpointError(f"{file}: {e}") from None
        finally:
            view.release()
    threads = min(cpus(), THREADS)
    timing = PieceTiming(calls=max(1, cpus() // THREADS))
    plan, speak = (Session(half, {}, threads) for half in halves)
    return KokoroGraphs(voices, plan, speak, timing)


def _halves(data: memoryview) -> tuple[bytes, bytes]:
    """The part of the graph that plans, and the part that speaks."""
    inputs = {"tokens": INT64, "style": FLOAT, "speed": FLOAT}
    between = (DURATIONS, PROSODY, TEXT)
    file = OnnxFile(data)
    first = file.part(inputs, between)
    second = file.part({"style": FLOAT, **dict.fromkeys(between, FLOAT)}, [AUDIO])
    return first, second
